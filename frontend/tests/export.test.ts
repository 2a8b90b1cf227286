import { expect, test } from "vitest";
import { csv, fileName, tableOf } from "../src/export";

test("a table is quoted where it must be", () => {
  expect(csv([["a", 'say "x"', "b,c"], [1.5, null, "two\nlines"]])).toBe('a,"say ""x""","b,c"\r\n1.5,,"two\nlines"\r\n');
});

test("no cell is a formula", () => {
  expect(csv([["=1+1", "@x", "-y", "+z"]])).toBe("'=1+1,'@x,'-y,'+z\r\n");
  expect(csv([[-1.5]])).toBe("-1.5\r\n");
});

test("names of files hold nothing that a disk takes amiss", () => {
  expect(fileName("train/loss", "png")).toBe("train-loss.png");
  expect(fileName("../../etc/passwd", "csv")).toBe("etc-passwd.csv");
  expect(fileName("<img>", "csv")).toBe("img.csv");
  expect(fileName("////", "csv")).toBe("paceline.csv");
});

test("a plot is a row for each point", () => {
  const line = { name: "run", color: "", x: [1, 2], y: [3, null], low: [2, null], high: [4, null] };
  expect(tableOf({ title: "loss", lines: [line], xLabel: "step" })).toStrictEqual([
    ["plot", "line", "step", "value", "low", "high"], ["loss", "run", 1, 3, 2, 4], ["loss", "run", 2, null, null, null],
  ]);
});
