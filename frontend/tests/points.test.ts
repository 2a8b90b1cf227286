import { test } from "node:test";
import { deepEqual, equal } from "node:assert/strict";
import type { Points } from "../src/api";
import { extentOf, grouped, named, spliced } from "../src/points";

const points = (x: number[], whole = false): Points => ({ name: "a", x, y: x, low: x, high: x, num_points: x.length, whole });

test("metrics are grouped by what stands before the first slash", () => {
  deepEqual(grouped(["train/loss", "lr", "eval/a/b", "train/acc", "/odd"]), [
    { prefix: "", names: ["/odd", "lr"] },
    { prefix: "eval", names: ["eval/a/b"] },
    { prefix: "train", names: ["train/acc", "train/loss"] },
  ]);
});

test("a filter is words or a regular expression", () => {
  const names = ["train/loss", "eval/loss", "eval/acc"];
  deepEqual(names.filter(named("")), names);
  deepEqual(names.filter(named("eval LOSS")), ["eval/loss"]);
  deepEqual(names.filter(named("/^train|acc$/")), ["train/loss", "eval/acc"]);
  deepEqual(names.filter(named("/(/")), []);
});

test("fine points take the place of the coarse ones that they cover", () => {
  deepEqual(spliced(points([0, 10, 20, 30, 40]), points([9, 12, 15, 21])).x, [0, 9, 12, 15, 21, 30, 40]);
  deepEqual(spliced(points([0, 10, 20]), points([])).x, [0, 10, 20]);
  deepEqual(spliced(points([0, 10, 20]), undefined).x, [0, 10, 20]);
  deepEqual(spliced(points([0, 10]), points([15, 25])).x, [0, 10, 15, 25]);
});

test("where every point is there already, nothing is put in its place", () => {
  const whole = points([1, 2, 3], true);
  equal(spliced(whole, points([2])), whole);
});

test("the extent of several runs", () => {
  deepEqual(extentOf([points([3, 9]), points([1, 4]), points([])]), [1, 9]);
  equal(extentOf([points([])]), null);
});
