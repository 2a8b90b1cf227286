import { test } from "node:test";
import { deepEqual, equal } from "node:assert/strict";
import type { Summary } from "../src/api";
import { counted, matches, metricNames, rows } from "../src/listing";
import type { Chosen } from "../src/listing";

const run = (id: string, more: Partial<Summary> = {}): Summary => ({
  id, name: id.split("/").at(-1) ?? id, path: `/runs/${id}`, kind: "run", state: "complete", began_at: 0, ended_at: null, updated_at: 0,
  attempt: 1, num_workers: 1, num_reports: 0, num_checkpoints: 0, num_failures: 0, metrics: {}, best: null, progress: null, left_s: null,
  steps_per_s: null, epochs_per_s: null, failure: null, hang: null, search: null, ...more,
});
const all: Chosen = { text: "", states: [], sort: "name", down: false, open: [] };
const ids = (runs: readonly Summary[], chosen: Partial<Chosen>) => rows(runs, { ...all, ...chosen }).map((row) => row.run.id);

test("all words have to be found, anywhere", () => {
  const one = run("vision/ResNet", { metrics: { "eval/loss": 1 }, state: "failed" });
  for (const text of ["", "resnet", "VISION failed", "eval/loss", "  loss   net "]) equal(matches(one, text), true, text);
  for (const text of ["resnet complete", "accuracy", "vision x"]) equal(matches(one, text), false, text);
});

test("rows are sorted by any column, either way, and what has no value comes last", () => {
  const runs = [run("b", { progress: 0.5 }), run("a"), run("c", { progress: 0.1 })];
  deepEqual(ids(runs, {}), ["a", "b", "c"]);
  deepEqual(ids(runs, { down: true }), ["c", "b", "a"]);
  deepEqual(ids(runs, { sort: "progress" }), ["c", "b", "a"]);
  deepEqual(ids(runs, { sort: "progress", down: true }), ["b", "c", "a"]);
  const measured = [run("x", { metrics: { m: 2 } }), run("y", { metrics: { m: "nan" } }), run("z", { metrics: { m: 1 } })];
  deepEqual(ids(measured, { sort: "metric:m" }), ["z", "x", "y"]);
});

test("names are sorted as people count", () => {
  deepEqual(ids([run("run-10"), run("run-9")], {}), ["run-9", "run-10"]);
});

test("trials stand below their search once it is unfolded", () => {
  const runs = [run("s/t2", { kind: "trial", search: "s" }), run("s", { kind: "search" }), run("s/t1", { kind: "trial", search: "s", state: "failed" }), run("a")];
  deepEqual(ids(runs, {}), ["a", "s"]);
  deepEqual(ids(runs, { open: ["s"] }), ["a", "s", "s/t1", "s/t2"]);
  deepEqual(rows(runs, { ...all, open: ["s"] }).map((row) => [row.depth, row.trials]), [[0, 0], [0, 2], [1, 0], [1, 0]]);
});

test("a trial that is found brings its search along", () => {
  const runs = [run("s/t2", { kind: "trial", search: "s" }), run("s", { kind: "search" }), run("s/t1", { kind: "trial", search: "s", state: "failed" })];
  deepEqual(ids(runs, { text: "t1" }), ["s"]);
  deepEqual(ids(runs, { text: "t1", open: ["s"] }), ["s", "s/t1"]);
  deepEqual(ids(runs, { states: ["failed"], open: ["s"] }), ["s", "s/t1"]);
});

test("a trial whose search is not listed stands for itself", () => {
  deepEqual(ids([run("s/t1", { kind: "trial", search: "s" })], {}), ["s/t1"]);
});

test("states are counted, and metrics named", () => {
  deepEqual(counted([run("a"), run("b", { state: "running" }), run("c")]), [["running", 1], ["complete", 2]]);
  deepEqual(metricNames([run("a", { metrics: { b: 1, a: 2, text: "x" } })]), ["a", "b"]);
});
