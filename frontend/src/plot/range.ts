// The visible ranges of x and y. `whole` is the full range of x; null stands for it.

export type Range = readonly [number, number];

export function zoomRange(range: Range, at: number, factor: number, whole: Range): Range | null {
  const [from, to] = range;
  const width = Math.max((to - from) * factor, least(whole));
  const part = to === from ? 0.5 : (at - from) / (to - from);
  return clampRange([at - part * width, at + (1 - part) * width], whole);
}

export function panRange(range: Range, by: number, whole: Range): Range | null {
  return clampRange([range[0] + by, range[1] + by], whole);
}

// Moves a range into the whole, keeping its width if possible; null if it is the whole.
export function clampRange(range: Range, whole: Range): Range | null {
  const [from, to] = range;
  const width = Math.max(to - from, least(whole));
  if (!(width < (whole[1] - whole[0]) * 0.9999)) return null;
  const begin = Math.min(Math.max(from, whole[0]), whole[1] - width);
  return [begin, begin + width];
}

// The smallest width: floats allow no less.
function least(whole: Range): number {
  return Math.max(Math.abs(whole[0]), Math.abs(whole[1]), 1e-300) * 1e-12 + (whole[1] - whole[0]) * 1e-9;
}

// The range of y for the least and greatest value, with padding, or on a log scale rounded to a labelled number. `shows`
// is always included.
export function padRange(low: number | null, high: number | null, log: boolean, shows?: Range): Range {
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
