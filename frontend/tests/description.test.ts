import { expect, test } from "vitest";
import { describePlot, xExtent, yExtent } from "../src/plot/description";
import type { Line } from "../src/plot/types";

const line = (x: number[], y: (number | null)[], more: Partial<Line> = {}): Line => ({ name: "a", color: "", x, y, ...more });

test("extents leave out gaps and what is infinite, and hold the band", () => {
  expect(yExtent(line([0, 1, 2, 3], [5, null, -1, 7]), [0, 3])).toStrictEqual([-1, 7]);
  expect(yExtent(line([0, 1, 2, 3], [5, null, -1, 7]), [0, 1])).toStrictEqual([5, 5]);
  expect(yExtent(line([0, 1], [Infinity, 2]), [0, 1])).toStrictEqual([2, 2]);
  expect(yExtent(line([0], [2], { low: [1], high: [4] }), [0, 1])).toStrictEqual([1, 4]);
  expect(yExtent(line([0], [null]), [0, 1])).toBe(null);
  expect(xExtent([line([0, 3], [1, 1]), line([-4, 9], [1, 1]), line([], [])])).toStrictEqual([-4, 9]);
  expect(xExtent([])).toBe(null);
});

test("a plot is told line by line", () => {
  const lines = [line([1, 2, 3], [4, 6, null]), line([1], [null], { name: "b" })];
  expect(describePlot({ title: "", lines }, [1, 3])).toBe("a: from 4 to 6, last 6 at 2. b: no values.");
  expect(describePlot({ title: "", lines: [] }, [0, 1])).toBe("No points.");
});
