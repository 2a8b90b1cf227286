import { expect, test } from "vitest";
import type { Points } from "../src/api";
import { extentOf, groupByPrefix, nameFilter, splicePoints } from "../src/points";

const points = (x: number[], whole = false): Points => ({ name: "a", x, y: x, low: x, high: x, num_points: x.length, whole });

test("metrics are grouped by their prefix before the first slash", () => {
  expect(groupByPrefix(["train/loss", "lr", "eval/a/b", "train/acc", "/odd"])).toStrictEqual([
    { prefix: "", names: ["/odd", "lr"] },
    { prefix: "eval", names: ["eval/a/b"] },
    { prefix: "train", names: ["train/acc", "train/loss"] },
  ]);
});

test("a filter is words or a regular expression", () => {
  const names = ["train/loss", "eval/loss", "eval/acc"];
  expect(names.filter(nameFilter(""))).toStrictEqual(names);
  expect(names.filter(nameFilter("eval LOSS"))).toStrictEqual(["eval/loss"]);
  expect(names.filter(nameFilter("/^train|acc$/"))).toStrictEqual(["train/loss", "eval/acc"]);
  expect(names.filter(nameFilter("/(/"))).toStrictEqual([]);
});

test("fine points take the place of the coarse ones that they cover", () => {
  expect(splicePoints(points([0, 10, 20, 30, 40]), points([9, 12, 15, 21])).x).toStrictEqual([0, 9, 12, 15, 21, 30, 40]);
  expect(splicePoints(points([0, 10, 20]), points([])).x).toStrictEqual([0, 10, 20]);
  expect(splicePoints(points([0, 10, 20]), undefined).x).toStrictEqual([0, 10, 20]);
  expect(splicePoints(points([0, 10]), points([15, 25])).x).toStrictEqual([0, 10, 15, 25]);
});

test("where every point is there already, nothing is put in its place", () => {
  const whole = points([1, 2, 3], true);
  expect(splicePoints(whole, points([2]))).toBe(whole);
});

test("the extent of several runs", () => {
  expect(extentOf([points([3, 9]), points([1, 4]), points([])])).toStrictEqual([1, 9]);
  expect(extentOf([points([])])).toBe(null);
});
