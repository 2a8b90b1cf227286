import { test } from "node:test";
import { deepEqual, equal, ok } from "node:assert/strict";
import { between, held, panned, zoomed } from "../src/plot/range";

const whole = [0, 100] as const;

test("zooming keeps what is under the pointer", () => {
  deepEqual(zoomed([0, 100], 25, 0.5, whole), [12.5, 62.5]);
  const made = zoomed([20, 40], 30, 0.1, whole);
  ok(made !== null && Math.abs(made[0] - 29) < 1e-9 && Math.abs(made[1] - 31) < 1e-9);
});

test("zooming out ends at the whole", () => {
  equal(zoomed([10, 90], 50, 2, whole), null);
  equal(zoomed(whole, 50, 1, whole), null);
  deepEqual(zoomed([80, 100], 100, 2, whole), [60, 100]);
});

test("zooming in ends where numbers do", () => {
  let range: readonly [number, number] = whole;
  for (let times = 0; times < 500; times += 1) range = zoomed(range, 50, 0.5, whole) ?? whole;
  ok(range[1] > range[0]);
});

test("panning keeps the width and stays within", () => {
  deepEqual(panned([10, 20], 5, whole), [15, 25]);
  deepEqual(panned([10, 20], -50, whole), [0, 10]);
  deepEqual(panned([10, 20], 500, whole), [90, 100]);
  equal(panned(whole, 5, whole), null);
});

test("a range that is wider than the whole is the whole", () => {
  equal(held([-50, 150], whole), null);
  deepEqual(held([-10, 20], whole), [0, 30]);
  deepEqual(between(5, 3), [3, 5]);
});
