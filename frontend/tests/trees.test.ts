import { test } from "node:test";
import { deepEqual, equal, ok } from "node:assert/strict";
import { compared, diffLines } from "../src/views/differing";
import { filtered, leaves, nodes, written } from "../src/views/trees";
import { detail, diff } from "./sample";

test("a tree has a node for each key, lists of plain values stay on one line", () => {
  const all = nodes(detail().config);
  deepEqual(all.map((node) => node.key), ["lr", "momentum", "epochs", "nesterov", "model", "augment", "1e3"]);
  deepEqual(all[4]?.children?.map((node) => [node.path, node.value]), [["model/name", "resnet50"], ["model/width", 64], ["model/layers", "[3,4,6,3]"]]);
  equal(leaves(all), 9);
});

test("a filter keeps what has all its words in the path or the value", () => {
  const all = nodes(detail().config);
  deepEqual(filtered(all, "MODEL width").map((node) => node.children?.map((each) => each.key)), [["width"]]);
  deepEqual(filtered(all, "resnet50")[0]?.children?.map((node) => node.key), ["name"]);
  equal(filtered(all, "model")[0]?.children?.length, 3);
  deepEqual(filtered(all, "nowhere"), []);
  equal(filtered(all, "  "), all);
});

test("texts that read as something else have quotes", () => {
  deepEqual(["1e3", "12", "None", "", " a", "relu", "2.7.1"].map(written), ['"1e3"', '"12"', '"None"', '""', '" a"', "relu", "2.7.1"]);
  deepEqual([null, true, 0.1].map(written), ["None", "True", "0.1"]);
});

test("a tree of any depth ends", () => {
  let deep: unknown = 1;
  for (let turn = 0; turn < 500; turn += 1) deep = { deep };
  equal(leaves(nodes(deep)), 1);
});

test("lines of a diff have their kind and their numbers", () => {
  const lines = diffLines(diff().code[0]?.diff ?? "");
  deepEqual(lines.map((line) => line.kind), ["file", "file", "where", "same", "removed", "added", "added", "same", "same"]);
  deepEqual(lines.map((line) => [line.a, line.b]).slice(3), [[1, 1], [2, null], [null, 2], [null, 3], [3, 4], [4, 5]]);
});

test("a line of code that looks like the head of a file is a line of code", () => {
  const lines = diffLines("--- a\n+++ b\n@@ -1 +1 @@\n--- x\n+++ y\n\\ No newline at end of file\n");
  deepEqual(lines.map((line) => line.kind), ["file", "file", "where", "removed", "added", "where"]);
});

test("metrics that differ come first, with their change", () => {
  const all = compared(diff().metrics);
  deepEqual(all.map((each) => each.key), ["loss", "accuracy", "epoch"]);
  ok(Math.abs((all[0]?.change ?? 0) + 0.03) < 1e-9 && Math.abs((all[0]?.share ?? 0) + 0.03 / 0.41) < 1e-9);
  deepEqual(compared([{ key: "x", a: null, b: 1 }, { key: "y", a: 0, b: 2 }]).map((each) => [each.change, each.share]), [[null, null], [2, null]]);
});
