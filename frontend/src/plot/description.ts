// A plot as text, for those who do not see it.

import { formatLabel } from "./labels";
import type { Range } from "./range";
import type { Line, PlotProps } from "./types";

export function describePlot({ lines, xKind = "number", yKind = "number" }: PlotProps, range: Range): string {
  if (lines.every((line) => line.x.length === 0)) return "No points.";
  return lines.map((line) => {
    const extent = yExtent(line, range);
    const last = line.y.findLastIndex((value) => value !== null && !Number.isNaN(value));
    if (extent === null || last < 0) return `${line.name}: no values.`;
    return `${line.name}: from ${formatLabel(extent[0], yKind)} to ${formatLabel(extent[1], yKind)}, last ${formatLabel(line.y[last] as number, yKind)} at ${formatLabel(line.x[last] as number, xKind)}.`;
  }).join(" ");
}

export function xExtent(lines: readonly Line[]): Range | null {
  let low = Infinity;
  let high = -Infinity;
  for (const { x } of lines) {
    low = Math.min(low, x[0] ?? Infinity);
    high = Math.max(high, x.at(-1) ?? -Infinity);
  }
  return low <= high ? [low, high] : null;
}

// Minimum and maximum of the visible values, including the band.
export function yExtent({ x, y, low, high }: Line, [from, to]: Range): Range | null {
  let least = Infinity;
  let greatest = -Infinity;
  for (let index = 0; index < x.length; index += 1) {
    const at = x[index] as number;
    if (at < from || at > to) continue;
    for (const values of [y, low ?? y, high ?? y]) {
      const value = values[index] ?? NaN;
      if (!Number.isFinite(value)) continue;
      if (value < least) least = value;
      if (value > greatest) greatest = value;
    }
  }
  return least <= greatest ? [least, greatest] : null;
}
