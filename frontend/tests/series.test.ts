import { expect, test } from "vitest";
import { bars, nearest, path, seen, series, smoothed, travel, xExtent, yExtent } from "../src/plot/series";
import type { Series } from "../src/plot/series";
import type { Scale } from "../src/plot/scale";

const made = (x: number[], y: (number | null)[], low?: (number | null)[], high?: (number | null)[]): Series =>
  series({ name: "a", color: "", x, y, ...(low && high ? { low, high } : {}) });
const scale = (from: number, to: number, first: number, last: number, log = false): Scale => ({ domain: [from, to], pixels: [first, last], log });

test("a gap is nan, and a band that is the line itself is none", () => {
  expect(Number.isNaN(made([1, 2], [3, null]).y[1])).toBe(true);
  expect(made([1], [2], [2], [2]).low).toBe(null);
  expect(made([1], [2], [1], [3]).low?.[0]).toBe(1);
});

test("what is seen has one point more on each side", () => {
  const x = Float64Array.from([0, 1, 2, 3, 4, 5]);
  expect(seen(x, [2, 3])).toStrictEqual([1, 5]);
  expect(seen(x, [-5, 50])).toStrictEqual([0, 6]);
  expect(seen(x, [2.2, 2.4])).toStrictEqual([2, 4]);
  expect(seen(x, [9, 10])).toStrictEqual([5, 6]);
  expect(seen(new Float64Array(0), [0, 1])).toStrictEqual([0, 0]);
});

test("extents leave out gaps, what is infinite, and on a log scale what is not positive", () => {
  const line = made([0, 1, 2, 3], [5, null, -1, 7]);
  expect(yExtent([line], [0, 3], false)).toStrictEqual([-1, 7]);
  expect(yExtent([line], [0, 3], true)).toStrictEqual([5, 7]);
  expect(yExtent([line], [0, 1], false)).toStrictEqual([5, 5]);
  expect(yExtent([made([0], [null])], [0, 1], false)).toBe(null);
  expect(yExtent([made([0, 1], [Infinity, 2])], [0, 1], false)).toStrictEqual([2, 2]);
  expect(xExtent([line, made([-4, 9], [1, 1])])).toStrictEqual([-4, 9]);
  expect(xExtent([])).toBe(null);
});

test("few points are drawn as they are", () => {
  const way = path(made([0, 5, 10], [0, 10, 5]), scale(0, 10, 0, 100), scale(0, 10, 100, 0));
  expect([...way]).toStrictEqual([0, 100, 50, 0, 100, 50]);
});

test("gaps and what is not positive on a log scale lift the pen", () => {
  const way = path(made([0, 1, 2, 3], [1, null, 1, 1]), scale(0, 3, 0, 300), scale(0, 2, 100, 0));
  expect([...way].filter((value, index) => index % 2 === 0 && Number.isNaN(value)).length).toBe(1);
  const log = path(made([0, 1, 2], [10, 0, 10]), scale(0, 2, 0, 200), scale(1, 100, 100, 0, true));
  expect([...log].map((value) => (Number.isNaN(value) ? null : Math.round(value)))).toStrictEqual([0, 50, null, null, 200, 50]);
});

test("many points leave the same picture: each column keeps its ends, its least and its greatest", () => {
  const count = 50_000;
  const x = Array.from({ length: count }, (_, index) => index);
  const y = x.map((value) => Math.sin(value * 12.9898) * 43758.5453 % 1);
  const line = made(x, y);
  const [xs, ys] = [scale(0, count - 1, 0, 400), scale(-1, 1, 200, 0)];
  const way = path(line, xs, ys);
  expect(way.length / 2 <= 401 * 4, `${way.length / 2} points`).toBe(true);
  const extremes = (points: Iterable<readonly [number, number]>) => {
    const columns = new Map<number, [number, number]>();
    for (const [px, py] of points) {
      const [low, high] = columns.get(Math.floor(px)) ?? [Infinity, -Infinity];
      columns.set(Math.floor(px), [Math.min(low, py), Math.max(high, py)]);
    }
    return [...columns];
  };
  const all = x.map((value, index) => [(value / (count - 1)) * 400, 200 - (((y[index] as number) + 1) / 2) * 200] as const);
  const kept: [number, number][] = [];
  for (let index = 0; index < way.length; index += 2) kept.push([way[index] as number, way[index + 1] as number]);
  const wanted = extremes(all);
  const got = extremes(kept);
  expect(got.length).toBe(wanted.length);
  wanted.forEach(([column, [low, high]], index) => {
    expect(got[index]?.[0]).toBe(column);
    expect(Math.abs((got[index]?.[1][0] ?? 0) - low) < 1e-6 && Math.abs((got[index]?.[1][1] ?? 0) - high) < 1e-6).toBe(true);
  });
});

test("paths of any size and shape never lose their last point", () => {
  for (let count = 1; count < 40; count += 1) {
    const x = Array.from({ length: count }, (_, index) => index / 7);
    const way = path(made(x, x.map((value) => Math.cos(value * 9))), scale(0, 6, 0, 3), scale(-1, 1, 100, 0));
    expect(Math.abs((way.at(-2) ?? NaN) - (x.at(-1) as number) / 2) < 1e-9, `of ${count}`).toBe(true);
    expect(Math.abs((way.at(-1) ?? NaN) - (100 - (Math.cos((x.at(-1) as number) * 9) + 1) * 50)) < 1e-9, `of ${count}`).toBe(true);
  }
});

test("bars are what a path covers in each column, and touch each other", () => {
  expect([...bars(Float64Array.from([0, 5, 0.5, 1, 0.9, 9, 1.2, 20, 1.4, 22, 5, 3]))]).toStrictEqual([0, 1, 9, 1, 9, 22, 5, 3, 22]);
  expect([...bars(Float64Array.from([0, 5, NaN, NaN, 1, 7, 1.5, 6]))]).toStrictEqual([0, 5, 5, 1, 6, 7]);
  expect([...bars(Float64Array.from([0, 5, NaN, NaN, 0.5, 7]))]).toStrictEqual([0, 5, 5, 0, 7, 7]);
  expect([...bars(new Float64Array(0))]).toStrictEqual([]);
  expect(travel(Float64Array.from([0, 0, 1, 5, NaN, NaN, 2, 9, 3, 7]))).toBe(7);
});

test("the nearest point has a value", () => {
  const line = made([0, 1, 2, 10], [5, null, null, 7]);
  expect(nearest(line, -3)).toBe(0);
  expect(nearest(line, 4)).toBe(0);
  expect(nearest(line, 6)).toBe(3);
  expect(nearest(line, Infinity)).toBe(3);
  expect(nearest(made([1], [null]), 1)).toBe(-1);
  expect(nearest(made([], []), 1)).toBe(-1);
});

test("smoothing starts at the first value, and a constant stays one", () => {
  const y = Float64Array.from([4, 4, 4, 4]);
  for (const weight of [0.1, 0.6, 0.99]) smoothed(y, weight).forEach((value) => expect(Math.abs(value - 4) < 1e-9).toBe(true));
  expect(smoothed(Float64Array.from([3, 9]), 0.9)[0]?.toFixed(9)).toBe("3.000000000");
});

test("smoothing lies between what it is made of, and 0 changes nothing", () => {
  const y = Float64Array.from([1, 5, NaN, 2, 8, 3]);
  expect(smoothed(y, 0)).toBe(y);
  const smooth = smoothed(y, 0.8);
  expect(Number.isNaN(smooth[2])).toBe(true);
  smooth.forEach((value, index) => expect(index === 2 || (value >= 1 && value <= 8)).toBe(true));
  expect(Number.isFinite(smooth[3]), "a gap is passed over").toBe(true);
});
