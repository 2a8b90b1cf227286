// Arithmetic of what part of a plot is seen. `whole` is all there is; null stands for it.

import type { Range } from "./scale";

export function zoomed(range: Range, at: number, factor: number, whole: Range): Range | null {
  const [from, to] = range;
  const width = Math.max((to - from) * factor, least(whole));
  const part = to === from ? 0.5 : (at - from) / (to - from);
  return held([at - part * width, at + (1 - part) * width], whole);
}

export function panned(range: Range, by: number, whole: Range): Range | null {
  return held([range[0] + by, range[1] + by], whole);
}

// Kept within the whole, without changing its width where that fits; null if it is the whole.
export function held(range: Range, whole: Range): Range | null {
  const [from, to] = range;
  const width = Math.max(to - from, least(whole));
  if (!(width < (whole[1] - whole[0]) * 0.9999)) return null;
  const begin = Math.min(Math.max(from, whole[0]), whole[1] - width);
  return [begin, begin + width];
}

export function between(a: number, b: number): Range {
  return a <= b ? [a, b] : [b, a];
}

// Further in one cannot see: there floats end.
function least(whole: Range): number {
  return Math.max(Math.abs(whole[0]), Math.abs(whole[1]), 1e-300) * 1e-12 + (whole[1] - whole[0]) * 1e-9;
}
