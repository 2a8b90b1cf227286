import { expect, test } from "vitest";
import { compareMetrics, diffLines } from "../src/views/differences";
import { filterTree, leaves, nodes, formatValue } from "../src/views/trees";
import { detail, diff } from "./sample";

test("a tree has a node for each key, lists of plain values stay on one line", () => {
  const all = nodes(detail().config);
  expect(all.map((node) => node.key)).toStrictEqual(["lr", "momentum", "epochs", "nesterov", "model", "augment", "1e3"]);
  expect(all[4]?.children?.map((node) => [node.path, node.value])).toStrictEqual([["model/name", "resnet50"], ["model/width", 64], ["model/layers", "[3,4,6,3]"]]);
  expect(leaves(all)).toBe(9);
});

test("a filter keeps what has all its words in the path or the value", () => {
  const all = nodes(detail().config);
  expect(filterTree(all, "MODEL width").map((node) => node.children?.map((each) => each.key))).toStrictEqual([["width"]]);
  expect(filterTree(all, "resnet50")[0]?.children?.map((node) => node.key)).toStrictEqual(["name"]);
  expect(filterTree(all, "model")[0]?.children?.length).toBe(3);
  expect(filterTree(all, "nowhere")).toStrictEqual([]);
  expect(filterTree(all, "  ")).toBe(all);
});

test("texts that read as something else have quotes", () => {
  expect(["1e3", "12", "None", "", " a", "relu", "2.7.1"].map(formatValue)).toStrictEqual(['"1e3"', '"12"', '"None"', '""', '" a"', "relu", "2.7.1"]);
  expect([null, true, 0.1].map(formatValue)).toStrictEqual(["None", "True", "0.1"]);
});

test("a tree of any depth ends", () => {
  let deep: unknown = 1;
  for (let turn = 0; turn < 500; turn += 1) deep = { deep };
  expect(leaves(nodes(deep))).toBe(1);
});

test("lines of a diff have their kind and their numbers", () => {
  const lines = diffLines(diff().code[0]?.diff ?? "");
  expect(lines.map((line) => line.kind)).toStrictEqual(["file", "file", "where", "same", "removed", "added", "added", "same", "same"]);
  expect(lines.map((line) => [line.a, line.b]).slice(3)).toStrictEqual([[1, 1], [2, null], [null, 2], [null, 3], [3, 4], [4, 5]]);
});

test("a line of code that looks like the head of a file is a line of code", () => {
  const lines = diffLines("--- a\n+++ b\n@@ -1 +1 @@\n--- x\n+++ y\n\\ No newline at end of file\n");
  expect(lines.map((line) => line.kind)).toStrictEqual(["file", "file", "where", "removed", "added", "where"]);
});

test("metrics that differ come first, with their change", () => {
  const all = compareMetrics(diff().metrics);
  expect(all.map((each) => each.key)).toStrictEqual(["loss", "accuracy", "epoch"]);
  expect(Math.abs((all[0]?.change ?? 0) + 0.03) < 1e-9 && Math.abs((all[0]?.share ?? 0) + 0.03 / 0.41) < 1e-9).toBe(true);
  expect(compareMetrics([{ key: "x", a: null, b: 1 }, { key: "y", a: 0, b: 2 }]).map((each) => [each.change, each.share])).toStrictEqual([[null, null], [2, null]]);
});
