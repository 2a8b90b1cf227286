// What part of a plot is seen, along x and along y. Along x `whole` is all there is; null stands for it.

export type Range = readonly [number, number];

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

// Further in one cannot see: there floats end.
function least(whole: Range): number {
  return Math.max(Math.abs(whole[0]), Math.abs(whole[1]), 1e-300) * 1e-12 + (whole[1] - whole[0]) * 1e-9;
}

// What of y is shown for the least and greatest value: a little more than those, or on a log scale up to a number that
// its axis can name. `shows` is the least that is shown in any case.
export function roomy(low: number | null, high: number | null, log: boolean, shows?: Range): Range {
  if (low === null || high === null || !(low <= high)) return log ? [0.1, 10] : shows ?? [0, 1];
  if (log) {
    const [from, to] = [Math.floor(low / decade(low)) * decade(low), Math.ceil(high / decade(high)) * decade(high)];
    return from < to ? [from, to] : [from / 2, to * 2];
  }
  if (shows !== undefined) return [Math.min(low, shows[0]), Math.max(high, shows[1])];
  const room = low === high ? (low === 0 ? 1 : Math.abs(low) * 0.1) : (high - low) * 0.05;
  return [low - room, high + room];
}

function decade(value: number): number {
  return Number(`1e${Math.floor(Math.log10(value))}`);
}
