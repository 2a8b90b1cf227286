// The ranks of an attempt, worst first, and their usage as lines of a plot.

import type { Attempt, UsageSeries, Worker } from "../api";
import { lineColor } from "../plot/colors";
import type { Line } from "../plot/types";

export type WorkerState = Worker["state"];

const WORST: readonly WorkerState[] = ["failed", "hangs", "gone", "starting", "running", "returned"];

const KILLED = new Set(["killed", "memory"]);

export interface WorkerRow extends Worker {
  // Why it failed.
  readonly cause: string | null;
  // Killed from outside, not by its own error.
  readonly wasKilled: boolean;
  // It failed first.
  readonly isCause: boolean;
}

export type RankKey = "worst" | "rank" | "state" | "host" | "num_reports" | "cpu" | "rss_bytes" | "gpu";

export function describeWorkers(attempt: Attempt): readonly WorkerRow[] {
  const failures = new Map(attempt.failures.map((failure) => [failure.rank, failure]));
  return attempt.workers.map((worker) => {
    const failure = failures.get(worker.rank);
    const hang = worker.state === "hangs" ? attempt.hangs.filter((each) => each.rank === worker.rank).at(-1) : undefined;
    const cause = worker.failure ?? failure?.message ?? hang?.verdict ?? null;
    const wasKilled = worker.state === "failed" && (KILLED.has(failure?.kind ?? "") || /\bkilled by\b/.test(cause ?? ""));
    return { ...worker, cause, wasKilled, isCause: failure?.is_cause ?? false };
  });
}

export function sortWorkers(workers: readonly WorkerRow[], key: RankKey, down: boolean): readonly WorkerRow[] {
  const sign = down ? -1 : 1;
  return [...workers].sort((a, b) => sign * compare(sortValue(a, key), sortValue(b, key)) || a.rank - b.rank);
}

function sortValue(worker: WorkerRow, key: RankKey): number | string {
  switch (key) {
    case "worst":
      return WORST.indexOf(worker.state) - (worker.isCause ? 0.5 : 0);
    case "gpu":
      return worker.gpus.reduce((sum, gpu) => sum + gpu.used_bytes, 0);
    default:
      return worker[key] ?? -1;
  }
}

function compare(a: number | string, b: number | string): number {
  return a < b ? -1 : a > b ? 1 : 0;
}

export function countStates(workers: readonly Worker[]): readonly (readonly [WorkerState, number])[] {
  return WORST.map((state) => [state, workers.filter((worker) => worker.state === state).length] as const)
    .filter(([, many]) => many > 0);
}

// Parses ranks such as `0-3, 7`. Null if the text is invalid.
export function parseRanks(text: string): readonly number[] | null {
  const ranks = new Set<number>();
  for (const part of text.split(",").map((each) => each.trim()).filter((each) => each !== "")) {
    const match = /^(\d+)(?:\s*-\s*(\d+))?$/.exec(part);
    if (match === null) return null;
    const first = Number(match[1]);
    const last = match[2] === undefined ? first : Number(match[2]);
    if (last < first || last - first > 10_000) return null;
    for (let rank = first; rank <= last; rank += 1) ranks.add(rank);
  }
  return [...ranks].sort((a, b) => a - b);
}

export type Measure = "cpu" | "rss_bytes" | "gpu_used_bytes" | "gpu_busy";

// More lines cannot be distinguished.
export const MOST_LINES = 8;
const GRID = 240;

export function hasMeasure(series: readonly UsageSeries[], measure: Measure): boolean {
  return series.some((each) => (measure === "gpu_used_bytes" || measure === "gpu_busy")
    ? each[measure].some((gpu) => gpu.some((value) => value !== null))
    : each[measure].length > 0);
}

// One line for each picked rank (and GPU), and one line with the mean and the band of the others.
export function usageLines(
  series: readonly UsageSeries[], measure: Measure, picked: readonly number[],
): readonly Line[] {
  const chosen = series.filter((each) => picked.includes(each.rank));
  const lines = chosen.flatMap((each): readonly Line[] => {
    const color = lineColor(picked.indexOf(each.rank));
    if (measure === "cpu" || measure === "rss_bytes") return [{ name: `rank ${each.rank}`, color, x: each.at, y: each[measure] }];
    return each[measure].map((y, gpu) => ({
      name: each[measure].length > 1 ? `rank ${each.rank}, GPU ${gpu}` : `rank ${each.rank}`,
      color, x: each.at, y, dashed: gpu > 0,
    }));
  });
  const others = series.filter((each) => !picked.includes(each.rank));
  const rest = others.length > 0 ? meanLine(others, measure) : null;
  return rest === null ? lines : [rest, ...lines];
}

// Mean, least and greatest over these ranks, in intervals of time.
export function meanLine(series: readonly UsageSeries[], measure: Measure): Line | null {
  const samples: [number, number][] = [];
  for (const each of series) {
    each.at.forEach((at, index) => {
      const value = valueAt(each, measure, index);
      if (value !== null) samples.push([at, value]);
    });
  }
  if (samples.length === 0) return null;
  let first = Infinity;
  let last = -Infinity;
  for (const [at] of samples) {
    first = Math.min(first, at);
    last = Math.max(last, at);
  }
  const longest = Math.max(...series.map((each) => each.at.length));
  const cells = Math.max(1, Math.min(GRID, longest));
  const width = (last - first) / cells || 1;
  const sums = Array.from({ length: cells }, () => ({ sum: 0, many: 0, low: Infinity, high: -Infinity }));
  for (const [at, value] of samples) {
    const cell = sums[Math.min(cells - 1, Math.floor((at - first) / width))];
    if (cell === undefined) continue;
    cell.sum += value;
    cell.many += 1;
    cell.low = Math.min(cell.low, value);
    cell.high = Math.max(cell.high, value);
  }
  const filled = sums.map((cell, index) => ({ ...cell, x: first + (index + 0.5) * width })).filter((cell) => cell.many > 0);
  return {
    name: `mean of ${series.length} ranks`,
    color: "var(--soft)",
    x: filled.map((cell) => cell.x),
    y: filled.map((cell) => cell.sum / cell.many),
    low: filled.map((cell) => cell.low),
    high: filled.map((cell) => cell.high),
  };
}

function valueAt(series: UsageSeries, measure: Measure, index: number): number | null {
  if (measure === "cpu" || measure === "rss_bytes") return series[measure][index] ?? null;
  const values = series[measure].map((gpu) => gpu[index] ?? null).filter((value) => value !== null);
  if (values.length === 0) return null;
  const sum = values.reduce((total, value) => total + value, 0);
  return measure === "gpu_busy" ? sum / values.length : sum;
}
