// Lines as arrays of numbers: what of them is seen, their least and greatest, and the path that a pen takes. A gap is
// nan. Nothing here draws.

import type { Line } from "./types";
import type { Range, Scale } from "./scale";

export interface Series {
  readonly x: Float64Array;
  readonly y: Float64Array;
  readonly low: Float64Array | null;
  readonly high: Float64Array | null;
}

export function series(line: Line): Series {
  const x = Float64Array.from(line.x);
  const y = numbers(line.y);
  const differs = line.low !== undefined && line.high !== undefined && line.low.some((low, index) => low !== line.y[index] || line.high?.[index] !== low);
  return { x, y, low: differs ? numbers(line.low ?? []) : null, high: differs ? numbers(line.high ?? []) : null };
}

export function numbers(values: readonly (number | null)[]): Float64Array {
  const made = new Float64Array(values.length);
  for (let index = 0; index < values.length; index += 1) made[index] = values[index] ?? NaN;
  return made;
}

// The first index whose x is not below.
export function from(x: Float64Array, value: number): number {
  let low = 0;
  let high = x.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if ((x[middle] as number) < value) low = middle + 1;
    else high = middle;
  }
  return low;
}

// Indices [first, end) of what is seen, with one more on each side, to which the line goes on.
export function seen(x: Float64Array, range: Range): readonly [number, number] {
  const first = Math.max(0, from(x, range[0]) - 1);
  let end = from(x, range[1]);
  while (end < x.length && (x[end] as number) <= range[1]) end += 1;
  return [first, Math.min(x.length, end + 1)];
}

export function xExtent(all: readonly Series[]): Range | null {
  let low = Infinity;
  let high = -Infinity;
  for (const { x } of all) {
    if (x.length === 0) continue;
    low = Math.min(low, x[0] as number);
    high = Math.max(high, x[x.length - 1] as number);
  }
  return low <= high ? [low, high] : null;
}

// Least and greatest of what is seen; on a log scale, of what is positive.
export function yExtent(all: readonly Series[], range: Range, log: boolean): Range | null {
  let low = Infinity;
  let high = -Infinity;
  for (const { x, y, low: lows, high: highs } of all) {
    const first = from(x, range[0]);
    for (let index = first; index < x.length && (x[index] as number) <= range[1]; index += 1) {
      const bottom = (lows ?? y)[index] as number;
      const top = (highs ?? y)[index] as number;
      const middle = y[index] as number;
      if (bottom < low && (!log || bottom > 0) && bottom > -Infinity) low = bottom;
      if (middle < low && (!log || middle > 0) && middle > -Infinity) low = middle;
      if (top > high && top < Infinity) high = top;
    }
  }
  return low <= high ? [low, high] : null;
}

// A path as flat pixels x, y, x, y ...; nan lifts the pen. Of points in one column of pixels only the first, the least,
// the greatest and the last are kept: the picture is the same. Within a column values are compared only, which is most
// of the work where there are many.
export function path(s: Series, xs: Scale, ys: Scale, values: Float64Array = s.y): Float64Array {
  const [first, end] = seen(s.x, xs.domain);
  const { x } = s;
  const slope = (xs.pixels[1] - xs.pixels[0]) / (xs.domain[1] - xs.domain[0]);
  const shift = xs.pixels[0] - xs.domain[0] * slope;
  const least = ys.log ? 0 : -Infinity;
  let size = 0;
  const put = (px: number, value: number) => {
    if (size + 2 > scratch.length) {
      const larger = new Float64Array(scratch.length * 2);
      larger.set(scratch);
      scratch = larger;
    }
    scratch[size] = px;
    scratch[size + 1] = value !== value ? NaN : placed(ys, value);
    size += 2;
  };
  let isUp = true;
  let index = first;
  while (index < end) {
    const begin = values[index] as number;
    if (!(begin > least && begin < Infinity)) {
      if (!isUp) put(NaN, NaN);
      isUp = true;
      index += 1;
      continue;
    }
    const px = (x[index] as number) * slope + shift;
    const column = Math.floor(px);
    const until = (column + 1 - shift) / slope;
    put(px, begin);
    isUp = false;
    let low = begin, high = begin, lowAt = index, highAt = index, last = begin;
    const from = index;
    index += 1;
    while (index < end && (x[index] as number) < until) {
      const value = values[index] as number;
      if (!(value > least && value < Infinity)) break;
      if (value < low) { low = value; lowAt = index; }
      if (value > high) { high = value; highAt = index; }
      last = value;
      index += 1;
    }
    if (index - from < 2) continue;
    const [one, other] = lowAt < highAt ? [low, high] : [high, low];
    if (index - from > 2 && one !== begin && one !== last) put(column + 0.5, one);
    if (index - from > 2 && other !== begin && other !== last) put(column + 0.5, other);
    put((x[index - 1] as number) * slope + shift, last);
  }
  return scratch.slice(0, size);
}

let scratch = new Float64Array(4096);

function placed(scale: Scale, value: number): number {
  const [from, to] = scale.domain;
  const [first, last] = scale.pixels;
  if (!scale.log) return first + ((value - from) / (to - from)) * (last - first);
  return first + ((Math.log(value) - Math.log(from)) / (Math.log(to) - Math.log(from))) * (last - first);
}

// How far a pen goes up and down along a path.
export function travel(way: Float64Array): number {
  let sum = 0;
  for (let index = 3; index < way.length; index += 2) {
    const by = Math.abs((way[index] as number) - (way[index - 2] as number));
    if (by === by) sum += by;
  }
  return sum;
}

// A path as bars, one for each column of pixels: column, top, bottom, ... Each touches the one before it, as the line
// does. Where a line goes up and down all the time it looks the same so, and is drawn many times faster.
export function bars(way: Float64Array): Float64Array {
  const made = new Float64Array((way.length / 2) * 3);
  let size = 0;
  let before = NaN;
  for (let index = 0; index < way.length; index += 2) {
    const y = way[index + 1] as number;
    const column = Math.floor(way[index] as number);
    if (y !== y) {
      before = NaN;
      continue;
    }
    const isSame = size > 0 && before === before && made[size - 3] === column;
    if (!isSame) {
      made[size] = column;
      made[size + 1] = before === before ? Math.min(y, before) : y;
      made[size + 2] = before === before ? Math.max(y, before) : y;
      size += 3;
    } else {
      if (y < (made[size - 2] as number)) made[size - 2] = y;
      if (y > (made[size - 1] as number)) made[size - 1] = y;
    }
    before = y;
  }
  return made.slice(0, size);
}

// The point nearest to x that has a value; -1 where there is none.
export function nearest(s: Series, x: number): number {
  const after = from(s.x, x);
  let up = after;
  while (up < s.x.length && Number.isNaN(s.y[up])) up += 1;
  let down = after - 1;
  while (down >= 0 && Number.isNaN(s.y[down])) down -= 1;
  if (up >= s.x.length) return down;
  if (down < 0) return up;
  return (s.x[up] as number) - x < x - (s.x[down] as number) ? up : down;
}

// An exponential mean of what came before, without the pull towards the first value that a plain one has. 0 changes
// nothing. Gaps stay gaps, and are passed over.
export function smoothed(y: Float64Array, weight: number): Float64Array {
  if (!(weight > 0)) return y;
  const keep = Math.min(weight, 0.999);
  const made = new Float64Array(y.length);
  let mean = 0;
  let scale = 1;
  for (let index = 0; index < y.length; index += 1) {
    const value = y[index] as number;
    if (!Number.isFinite(value)) {
      made[index] = NaN;
      continue;
    }
    mean = mean * keep + value * (1 - keep);
    scale *= keep;
    made[index] = mean / (1 - scale);
  }
  return made;
}
