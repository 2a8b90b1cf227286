import { expect, test } from "vitest";
import { clampRange, panRange, padRange, zoomRange } from "../src/plot/range";

const whole = [0, 100] as const;

test("zooming keeps what is under the pointer", () => {
  expect(zoomRange([0, 100], 25, 0.5, whole)).toStrictEqual([12.5, 62.5]);
  const made = zoomRange([20, 40], 30, 0.1, whole);
  expect(made !== null && Math.abs(made[0] - 29) < 1e-9 && Math.abs(made[1] - 31) < 1e-9).toBe(true);
});

test("zooming out ends at the whole", () => {
  expect(zoomRange([10, 90], 50, 2, whole)).toBe(null);
  expect(zoomRange(whole, 50, 1, whole)).toBe(null);
  expect(zoomRange([80, 100], 100, 2, whole)).toStrictEqual([60, 100]);
});

test("zooming in ends where numbers do", () => {
  let range: readonly [number, number] = whole;
  for (let times = 0; times < 500; times += 1) range = zoomRange(range, 50, 0.5, whole) ?? whole;
  expect(range[1] > range[0]).toBe(true);
});

test("panning keeps the width and stays within", () => {
  expect(panRange([10, 20], 5, whole)).toStrictEqual([15, 25]);
  expect(panRange([10, 20], -50, whole)).toStrictEqual([0, 10]);
  expect(panRange([10, 20], 500, whole)).toStrictEqual([90, 100]);
  expect(panRange(whole, 5, whole)).toBe(null);
});

test("a range that is wider than the whole is the whole", () => {
  expect(clampRange([-50, 150], whole)).toBe(null);
  expect(clampRange([-10, 20], whole)).toStrictEqual([0, 30]);
});

test("values have some room around them, and a constant as well", () => {
  expect(padRange(0, 100, false)).toStrictEqual([-5, 105]);
  expect(padRange(5, 5, false)).toStrictEqual([4.5, 5.5]);
  expect(padRange(0, 0, false)).toStrictEqual([-1, 1]);
  expect(padRange(0.2, 0.4, false, [0, 1])).toStrictEqual([0, 1]);
  expect(padRange(-1, 4, false, [0, 1])).toStrictEqual([-1, 4]);
});

test("a log scale ends at numbers that its axis can name", () => {
  expect(padRange(2.1, 2.9, true)).toStrictEqual([2, 3]);
  expect(padRange(0.013, 42, true)).toStrictEqual([0.01, 50]);
  expect(padRange(1, 1, true)).toStrictEqual([0.5, 2]);
  expect(padRange(1e-5, 1e5, true)).toStrictEqual([1e-5, 1e5]);
});

test("nothing to show has a scale, too", () => {
  expect(padRange(null, null, false)).toStrictEqual([0, 1]);
  expect(padRange(null, null, false, [0, 0.5])).toStrictEqual([0, 0.5]);
  expect(padRange(null, null, true)).toStrictEqual([0.1, 10]);
});
