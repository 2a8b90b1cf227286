import { expect, test } from "vitest";
import { replaceUndrawable, isolated, smooth, buildTable } from "../src/plot/table";
import type { Line } from "../src/plot/types";

type Values = readonly (number | null)[];
const line = (x: readonly number[], y: Values, low?: Values, high?: Values): Line => ({ name: "a", color: "", x, y, ...(low && high ? { low, high } : {}) });
const parts = (lines: readonly Line[], smoothing = 0, log = false) => buildTable(lines, smoothing, log).columns.map(({ line: index, part }) => `${part} ${index}`);

test("lines that share their x are columns beside one another", () => {
  const { data } = buildTable([line([1, 2], [3, 4]), line([1, 2], [5, null])], 0, false);
  expect(data).toStrictEqual([[1, 2], [3, 4], [5, null]]);
});

test("an x that only another line has is no gap", () => {
  const { data } = buildTable([line([1, 3, 5], [1, 4, 2]), line([2, 3], [7, 8])], 0, false);
  expect(data).toStrictEqual([[1, 2, 3, 5], [1, undefined, 4, 2], [undefined, 7, 8, undefined]]);
});

test("a gap reaches from value to value of its line", () => {
  const { data } = buildTable([line([1, 3, 5, 9], [1, null, null, 2]), line([2, 4, 8], [7, 8, 9])], 0, false);
  expect(data[1]).toStrictEqual([1, null, null, null, null, null, 2]);
});

test("nothing is a table, too", () => {
  expect(buildTable([], 0, false)).toStrictEqual({ data: [[]], columns: [] });
  expect(buildTable([line([], [])], 0, false).data).toStrictEqual([[], []]);
});

test("bands lie below all lines, and smoothed lines above the original ones", () => {
  const banded = line([1], [2], [1], [3]);
  expect(parts([banded, line([1], [2]), banded])).toStrictEqual(["low 0", "high 0", "low 2", "high 2", "main 0", "main 1", "main 2"]);
  expect(parts([banded, line([1], [2])], 0.5)).toStrictEqual(["low 0", "high 0", "faint 0", "faint 1", "main 0", "main 1"]);
});

test("a band that is the line itself is none", () => {
  expect(parts([line([1, 2], [2, null], [2, null], [2, null])])).toStrictEqual(["main 0"]);
});

test("columns belong to their lines whatever their x", () => {
  const { data, columns } = buildTable([line([1], [2], [1], [3]), line([9], [8], [7], [9])], 0, false);
  expect(columns.map(({ line: index, part }) => [part, index])).toStrictEqual([["low", 0], ["high", 0], ["low", 1], ["high", 1], ["main", 0], ["main", 1]]);
  expect(data).toStrictEqual([[1, 9], [1, undefined], [3, undefined], [undefined, 7], [undefined, 9], [2, undefined], [undefined, 8]]);
});

test("what is not finite is a gap, and on a log scale what is not positive", () => {
  const values = [1, null, Infinity, NaN, -1, 0, 2];
  expect(replaceUndrawable(values, false)).toStrictEqual([1, null, null, null, -1, 0, 2]);
  expect(replaceUndrawable(values, true)).toStrictEqual([1, null, null, null, null, null, 2]);
  const fine = [1, null, 2];
  expect(replaceUndrawable(fine, true)).toBe(fine);
});

test("on a log scale a band that reaches below zero ends at its line", () => {
  expect(buildTable([line([1, 2], [2, 2], [-1, 1], [3, 3])], 0, true).data).toStrictEqual([[1, 2], [2, 1], [3, 3], [2, 2]]);
});

test("a value between two gaps is isolated, and so is the only one", () => {
  expect(isolated([1, null, 2, null, 3, 4])).toStrictEqual([0, 2]);
  expect(isolated([undefined, 5, undefined])).toStrictEqual([1]);
  expect(isolated([null, undefined, 5, undefined, null])).toStrictEqual([2]);
  expect(isolated([1, undefined, 2])).toStrictEqual([]);
  expect(isolated([1, 2, null, 3])).toStrictEqual([3]);
  expect(isolated([null, null])).toStrictEqual([]);
});

test("smoothing starts at the first value, and a constant stays one", () => {
  for (const weight of [0.1, 0.6, 0.99]) for (const value of smooth([4, 4, 4, 4], weight)) expect(value).toBeCloseTo(4, 9);
  expect(smooth([3, 9], 0.9)[0]).toBeCloseTo(3, 9);
});

test("smoothing lies between what it is made of, and 0 changes nothing", () => {
  const y = [1, 5, null, 2, 8, 3];
  expect(smooth(y, 0)).toBe(y);
  const smoothed = smooth(y, 0.8);
  expect(smoothed.map((value) => value === null)).toStrictEqual([false, false, true, false, false, false]);
  for (const value of smoothed) expect(value === null || (value >= 1 && value <= 8)).toBe(true);
});
