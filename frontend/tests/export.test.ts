import { test } from "node:test";
import { deepEqual, equal } from "node:assert/strict";
import { csv, fileName, tableOf } from "../src/export";

test("a table is quoted where it must be", () => {
  equal(csv([["a", 'say "x"', "b,c"], [1.5, null, "two\nlines"]]), 'a,"say ""x""","b,c"\r\n1.5,,"two\nlines"\r\n');
});

test("no cell is a formula", () => {
  equal(csv([["=1+1", "@x", "-y", "+z"]]), "'=1+1,'@x,'-y,'+z\r\n");
  equal(csv([[-1.5]]), "-1.5\r\n");
});

test("names of files hold nothing that a disk takes amiss", () => {
  equal(fileName("train/loss", "png"), "train-loss.png");
  equal(fileName("../../etc/passwd", "csv"), "etc-passwd.csv");
  equal(fileName("<img>", "csv"), "img.csv");
  equal(fileName("////", "csv"), "paceline.csv");
});

test("a plot is a row for each point", () => {
  const line = { name: "run", color: "", x: [1, 2], y: [3, null], low: [2, null], high: [4, null] };
  deepEqual(tableOf({ title: "loss", lines: [line], xLabel: "step" }), [
    ["plot", "line", "step", "value", "low", "high"], ["loss", "run", 1, 3, 2, 4], ["loss", "run", 2, null, null, null],
  ]);
});
