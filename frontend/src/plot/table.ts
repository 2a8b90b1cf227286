// Builds the table that uPlot draws: a column of x, and the columns of each line. Null is a gap; undefined is an x that
// only another line has.

import uPlot from "uplot";
import type { Line } from "./types";

// Low and high are the edges of a band; faint is the original of a smoothed line.
export type Part = "low" | "high" | "faint" | "main";
export type Values = readonly (number | null | undefined)[];

export interface Column {
  readonly line: number;
  readonly part: Part;
  readonly numValues: number;
  // Indices of values with a gap on both sides, which a line would not show.
  readonly isolated: number[];
}

export interface Table {
  readonly data: uPlot.AlignedData;
  // The columns of data[1] onwards. Bands come first, so that they are drawn below lines.
  readonly columns: readonly Column[];
}

// A gap extends to the next value of the same line, over x values of other lines.
const WIDE: uPlot.JoinNullMode.Expand = 2;
const ORDER: readonly Part[] = ["low", "high", "faint", "main"];

export function buildTable(lines: readonly Line[], smoothing: number, log: boolean): Table {
  const parts = lines.map((line) => partsOf(line, smoothing, log));
  const tables = lines.map((line, index) => [line.x, ...ORDER.flatMap((part) => parts[index]?.[part] ?? [])] as unknown as uPlot.AlignedData);
  const [x, ...joined] = lines.length === 0 ? [[]] : uPlot.join(tables, tables.map((table) => table.map(() => WIDE)));
  const columns = parts.flatMap((own, line) => ORDER.filter((part) => own[part] !== undefined).map((part) => ({ line, part })));
  const all = columns.map((column, index) => ({ ...column, values: joined[index] as Values }));
  const sorted = all.sort((a, b) => rank(a.part) - rank(b.part));
  return {
    data: [x, ...sorted.map((column) => column.values)] as uPlot.AlignedData,
    columns: sorted.map(({ line, part, values }) => ({
      line, part, numValues: lines[line]?.x.length ?? 0, isolated: part === "main" ? isolated(values) : [],
    })),
  };
}

function rank(part: Part): number {
  return part === "low" || part === "high" ? 0 : ORDER.indexOf(part);
}

type Parts = { readonly [part in Part]?: [Values] };

function partsOf(line: Line, smoothing: number, log: boolean): Parts {
  const y = replaceUndrawable(line.y, log);
  const made = smoothing > 0 ? { main: [replaceUndrawable(smooth(line.y, smoothing), log)] as [Values], faint: [y] as [Values] } : { main: [y] as [Values] };
  const { low, high } = line;
  if (low === undefined || high === undefined || !low.some((least, index) => least !== line.y[index] || high[index] !== least)) return made;
  // On a log scale the lower edge may not be positive: then the band ends at the line.
  const least = log ? low.map((value, index) => ((value ?? 0) > 0 ? value : line.y[index] ?? null)) : low;
  return { ...made, low: [replaceUndrawable(least, log)], high: [replaceUndrawable(high, log)] };
}

// Values that are not finite, or not positive on a log scale, become gaps.
export function replaceUndrawable(values: readonly (number | null)[], log: boolean): readonly (number | null)[] {
  const isFine = (value: number | null) => value === null || (Number.isFinite(value) && (!log || value > 0));
  return values.every(isFine) ? values : values.map((value) => (isFine(value) ? value : null));
}

export function isolated(values: Values): number[] {
  const made: number[] = [];
  let before: number | null = null;
  let candidate = -1;
  for (let index = 0; index < values.length; index += 1) {
    const value = values[index];
    if (value === undefined) continue;
    if (value === null) {
      if (candidate >= 0) made.push(candidate);
      candidate = -1;
    } else {
      candidate = before === null ? index : -1;
    }
    before = value;
  }
  if (candidate >= 0) made.push(candidate);
  return made;
}

// An exponential moving average with bias correction. A weight of 0 changes nothing. Gaps stay gaps.
export function smooth(y: readonly (number | null)[], weight: number): readonly (number | null)[] {
  if (!(weight > 0)) return y;
  const keep = Math.min(weight, 0.999);
  let mean = 0;
  let scale = 1;
  return y.map((value) => {
    if (value === null || !Number.isFinite(value)) return null;
    mean = mean * keep + value * (1 - keep);
    scale *= keep;
    return mean / (1 - scale);
  });
}
