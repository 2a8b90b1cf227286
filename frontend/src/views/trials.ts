// Data of a search for the view: parallel coordinates, brushes, importance, and the table of trials.

import type { SearchDetail, Summary, Tree } from "../api";

export interface Axis {
  readonly name: string;
  readonly label: string;
  readonly kind: "float" | "integer" | "category";
  readonly log: boolean;
  readonly low: number;
  readonly high: number;
  readonly marks: readonly number[];
  readonly is_cut: boolean;
  readonly categories: readonly string[];
  readonly has_gaps: boolean;
}

export interface TrialLine {
  readonly trial_id: string;
  readonly status: string;
  readonly value: number | null;
  readonly points: readonly (number | null)[];
}

export interface Parallel {
  readonly metric: string;
  readonly mode: "min" | "max";
  readonly best: string | null;
  readonly axes: readonly Axis[];
  readonly lines: readonly TrialLine[];
}

export interface Importance {
  readonly parameters: readonly { readonly name: string; readonly importance: number }[];
  readonly note: string | null;
}

export interface Curves {
  readonly metric: string;
  readonly mode: "min" | "max";
  readonly best: string | null;
  readonly scale: { readonly low: number; readonly high: number; readonly log: boolean; readonly is_cut: boolean };
  readonly lines: readonly {
    readonly trial_id: string;
    readonly status: string;
    readonly value: number | null;
    readonly points: readonly (readonly [number, number | null])[];
  }[];
}

export function parallelOf(search: SearchDetail): Parallel | null {
  return search.parallel as Parallel | null;
}

export function importanceOf(search: SearchDetail): Importance | null {
  return search.importance as Importance | null;
}

export function curvesOf(search: SearchDetail): Curves | null {
  return search.curves as Curves | null;
}

// Brushes by the name of an axis: a range from 0 to 1.
export type Brushes = Readonly<Record<string, readonly [number, number]>>;

export function passes(line: TrialLine, axes: readonly Axis[], brushes: Brushes): boolean {
  return axes.every((axis, index) => {
    const brush = brushes[axis.name];
    if (brush === undefined) return true;
    const at = line.points[index];
    return at !== null && at !== undefined && at >= brush[0] && at <= brush[1];
  });
}

// How good, from 0 to 1; null where nothing is known.
export function goodness(line: TrialLine, mode: "min" | "max"): number | null {
  const at = line.points[line.points.length - 1];
  return at === null || at === undefined ? null : mode === "min" ? 1 - at : at;
}

// The line that is nearest to a place in the drawing, if one is near. Axes lie `step` apart; 0 is at the bottom.
export function nearest(
  lines: readonly TrialLine[], x: number, y: number, step: number, height: number, within = 14,
): string | null {
  let found: string | null = null;
  let least = within;
  for (const line of lines) {
    const left = Math.max(0, Math.min(line.points.length - 2, Math.floor(x / step)));
    const a = line.points[left];
    const b = line.points[left + 1];
    if (a === null || a === undefined || b === null || b === undefined) continue;
    const away = distance(x, y, left * step, (1 - a) * height, (left + 1) * step, (1 - b) * height);
    if (away < least) {
      least = away;
      found = line.trial_id;
    }
  }
  return found;
}

function distance(x: number, y: number, ax: number, ay: number, bx: number, by: number): number {
  const dx = bx - ax;
  const dy = by - ay;
  const along = Math.max(0, Math.min(1, ((x - ax) * dx + (y - ay) * dy) / (dx * dx + dy * dy || 1)));
  return Math.hypot(x - ax - along * dx, y - ay - along * dy);
}

// The value at a position of an axis.
export function valueAt(axis: Axis, place: number): number | string {
  if (axis.kind === "category") return axis.categories[Math.round(place * Math.max(0, axis.categories.length - 1))] ?? "";
  if (axis.low === axis.high) return axis.low;
  const value = axis.log ? axis.low * (axis.high / axis.low) ** place : axis.low + (axis.high - axis.low) * place;
  return axis.kind === "integer" ? Math.round(value) : value;
}

export interface AxisMark { readonly at: number; readonly text: string }

export function axisMarks(axis: Axis, written: (value: number) => string): readonly AxisMark[] {
  if (axis.kind === "category") {
    const last = Math.max(1, axis.categories.length - 1);
    return thinned(axis.categories.map((text, index) => ({ at: axis.categories.length === 1 ? 0.5 : index / last, text })));
  }
  if (axis.low === axis.high) return [{ at: 0.5, text: written(axis.low) }];
  const place = (value: number): number => axis.log
    ? Math.log(value / axis.low) / Math.log(axis.high / axis.low)
    : (value - axis.low) / (axis.high - axis.low);
  const values = axis.marks.length > 0 ? axis.marks : [axis.low, Number(valueAt(axis, 0.5)), axis.high];
  return thinned(values.map((value) => ({ at: place(value), text: written(value) })));
}

// Few enough not to overlap.
function thinned(marks: readonly AxisMark[], apart = 0.07): readonly AxisMark[] {
  const last = marks[marks.length - 1];
  const kept: AxisMark[] = [];
  for (const mark of marks) {
    const before = kept[kept.length - 1];
    if (before !== undefined && mark.at - before.at < apart) continue;
    if (mark !== last && last !== undefined && last.at - mark.at < apart) continue;
    kept.push(mark);
  }
  return kept;
}

export interface Row {
  readonly id: string;
  // What the plots call it.
  readonly trial: string;
  readonly summary: Summary;
  readonly value: number | null;
  readonly isBest: boolean;
  readonly config: Tree;
}

// The trials of a search with their plotted values. A trial may have had several runs; the plots show the last.
export function rows(search: SearchDetail): readonly Row[] {
  const parallel = parallelOf(search);
  const lines = new Map((parallel?.lines ?? []).map((line) => [line.trial_id, line]));
  const named = search.trials.map((summary) => ({ summary, ...trialOf(summary.id, lines) }));
  const lives = new Map<string, number>();
  for (const { trial, life } of named) lives.set(trial, Math.max(life, lives.get(trial) ?? 0));
  return named.map(({ summary, trial, life }) => {
    const line = lives.get(trial) === life ? lines.get(trial) : undefined;
    const reported = search.metric === null ? undefined : summary.metrics[search.metric];
    return {
      id: summary.id,
      trial,
      summary,
      value: line === undefined ? (typeof reported === "number" ? reported : null) : line.value,
      isBest: line !== undefined && parallel?.best === trial,
      config: search.configs[summary.id] ?? search.configs[trial] ?? {},
    };
  });
}

// Plots name trials by their ids, such as `a1b2c_00003`, or `00003` in searches of earlier releases. Their runs are
// called `trial_00003`, or `trial_00003-1` if they continue another trial.
function trialOf(id: string, lines: ReadonlyMap<string, unknown>): { readonly trial: string; readonly life: number } {
  const last = id.split("/").pop() ?? id;
  if (lines.has(last)) return { trial: last, life: 0 };
  const [, number = last, life = "0"] = /^trial_(.+?)(?:-(\d+))?$/.exec(last) ?? [];
  const trial = [...lines.keys()].find((each) => each === number || each.endsWith(`_${number}`));
  return { trial: trial ?? number, life: Number(life) };
}

// Nested ones by path: `{"a": {"b": 1}}` is `{"a/b": 1}`.
export function flat(config: Tree, prefix = ""): Readonly<Record<string, unknown>> {
  const made: Record<string, unknown> = {};
  for (const [key, value] of Object.entries(config)) {
    if (typeof value === "object" && value !== null && !Array.isArray(value) && Object.keys(value).length > 0) {
      Object.assign(made, flat(value as Tree, `${prefix}${key}/`));
    } else made[prefix + key] = value;
  }
  return made;
}

// The parameters that differ among trials; all, where none does.
export function differingKeys(configs: readonly Readonly<Record<string, unknown>>[]): readonly string[] {
  const keys = [...new Set(configs.flatMap((config) => Object.keys(config)))];
  const differing = keys.filter((key) => new Set(configs.map((config) => JSON.stringify(config[key]) ?? "")).size > 1);
  return differing.length > 0 ? differing : keys;
}

export function sorted(all: readonly Row[], key: string, down: boolean): readonly Row[] {
  const sign = down ? -1 : 1;
  const flats = new Map(all.map((row) => [row.id, flat(row.config)]));
  const worth = (row: Row): unknown => {
    switch (key) {
      case " value":
        return row.value;
      case " state":
        return row.summary.state;
      case " trial":
        return row.summary.name;
      case " reports":
        return row.summary.num_reports;
      case " time":
        return (row.summary.ended_at ?? row.summary.updated_at) - row.summary.began_at;
      default:
        return flats.get(row.id)?.[key];
    }
  };
  return [...all].sort((a, b) => {
    const [x, y] = [worth(a), worth(b)];
    // What has no value comes last, whichever way.
    const gaps = Number(x === null || x === undefined) - Number(y === null || y === undefined);
    return gaps || sign * (typeof x === "number" && typeof y === "number" ? x - y : String(x).localeCompare(String(y))) || 0;
  });
}
