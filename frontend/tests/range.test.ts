import { expect, test } from "vitest";
import { held, panned, roomy, zoomed } from "../src/plot/range";

const whole = [0, 100] as const;

test("zooming keeps what is under the pointer", () => {
  expect(zoomed([0, 100], 25, 0.5, whole)).toStrictEqual([12.5, 62.5]);
  const made = zoomed([20, 40], 30, 0.1, whole);
  expect(made !== null && Math.abs(made[0] - 29) < 1e-9 && Math.abs(made[1] - 31) < 1e-9).toBe(true);
});

test("zooming out ends at the whole", () => {
  expect(zoomed([10, 90], 50, 2, whole)).toBe(null);
  expect(zoomed(whole, 50, 1, whole)).toBe(null);
  expect(zoomed([80, 100], 100, 2, whole)).toStrictEqual([60, 100]);
});

test("zooming in ends where numbers do", () => {
  let range: readonly [number, number] = whole;
  for (let times = 0; times < 500; times += 1) range = zoomed(range, 50, 0.5, whole) ?? whole;
  expect(range[1] > range[0]).toBe(true);
});

test("panning keeps the width and stays within", () => {
  expect(panned([10, 20], 5, whole)).toStrictEqual([15, 25]);
  expect(panned([10, 20], -50, whole)).toStrictEqual([0, 10]);
  expect(panned([10, 20], 500, whole)).toStrictEqual([90, 100]);
  expect(panned(whole, 5, whole)).toBe(null);
});

test("a range that is wider than the whole is the whole", () => {
  expect(held([-50, 150], whole)).toBe(null);
  expect(held([-10, 20], whole)).toStrictEqual([0, 30]);
});

test("values have some room around them, and a constant as well", () => {
  expect(roomy(0, 100, false)).toStrictEqual([-5, 105]);
  expect(roomy(5, 5, false)).toStrictEqual([4.5, 5.5]);
  expect(roomy(0, 0, false)).toStrictEqual([-1, 1]);
  expect(roomy(0.2, 0.4, false, [0, 1])).toStrictEqual([0, 1]);
  expect(roomy(-1, 4, false, [0, 1])).toStrictEqual([-1, 4]);
});

test("a log scale ends at numbers that its axis can name", () => {
  expect(roomy(2.1, 2.9, true)).toStrictEqual([2, 3]);
  expect(roomy(0.013, 42, true)).toStrictEqual([0.01, 50]);
  expect(roomy(1, 1, true)).toStrictEqual([0.5, 2]);
  expect(roomy(1e-5, 1e5, true)).toStrictEqual([1e-5, 1e5]);
});

test("nothing to show has a scale, too", () => {
  expect(roomy(null, null, false)).toStrictEqual([0, 1]);
  expect(roomy(null, null, false, [0, 0.5])).toStrictEqual([0, 0.5]);
  expect(roomy(null, null, true)).toStrictEqual([0.1, 10]);
});
