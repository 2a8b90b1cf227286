import { expect, test } from "vitest";
import type { Summary } from "../src/api";
import { countStates, matches, metricNames, listRows } from "../src/listing";
import type { ListFilter } from "../src/listing";

const run = (id: string, more: Partial<Summary> = {}): Summary => ({
  id, name: id.split("/").at(-1) ?? id, path: `/runs/${id}`, kind: "run", state: "finished", began_at: 0, ended_at: null, updated_at: 0,
  attempt: 1, num_workers: 1, num_reports: 0, num_checkpoints: 0, num_failures: 0, metrics: {}, best: null, progress: null, left_s: null,
  steps_per_s: null, epochs_per_s: null, failure: null, hang: null, search: null, ...more,
});
const all: ListFilter = { text: "", states: [], sort: "name", down: false, open: [] };
const ids = (runs: readonly Summary[], chosen: Partial<ListFilter>) => listRows(runs, { ...all, ...chosen }).map((row) => row.run.id);

test("all words have to be found, anywhere", () => {
  const one = run("vision/ResNet", { metrics: { "eval/loss": 1 }, state: "failed" });
  for (const text of ["", "resnet", "VISION failed", "eval/loss", "  loss   net "]) expect(matches(one, text), text).toBe(true);
  for (const text of ["resnet complete", "accuracy", "vision x"]) expect(matches(one, text), text).toBe(false);
});

test("rows are sorted by any column, either way, and what has no value comes last", () => {
  const runs = [run("b", { progress: 0.5 }), run("a"), run("c", { progress: 0.1 })];
  expect(ids(runs, {})).toStrictEqual(["a", "b", "c"]);
  expect(ids(runs, { down: true })).toStrictEqual(["c", "b", "a"]);
  expect(ids(runs, { sort: "progress" })).toStrictEqual(["c", "b", "a"]);
  expect(ids(runs, { sort: "progress", down: true })).toStrictEqual(["b", "c", "a"]);
  const measured = [run("x", { metrics: { m: 2 } }), run("y", { metrics: { m: "nan" } }), run("z", { metrics: { m: 1 } })];
  expect(ids(measured, { sort: "metric:m" })).toStrictEqual(["z", "x", "y"]);
});

test("names are sorted as people count", () => {
  expect(ids([run("run-10"), run("run-9")], {})).toStrictEqual(["run-9", "run-10"]);
});

test("trials stand below their search once it is unfolded", () => {
  const runs = [run("s/t2", { kind: "trial", search: "s" }), run("s", { kind: "search" }), run("s/t1", { kind: "trial", search: "s", state: "failed" }), run("a")];
  expect(ids(runs, {})).toStrictEqual(["a", "s"]);
  expect(ids(runs, { open: ["s"] })).toStrictEqual(["a", "s", "s/t1", "s/t2"]);
  expect(listRows(runs, { ...all, open: ["s"] }).map((row) => [row.depth, row.trials])).toStrictEqual([[0, 0], [0, 2], [1, 0], [1, 0]]);
});

test("a trial that is found brings its search along", () => {
  const runs = [run("s/t2", { kind: "trial", search: "s" }), run("s", { kind: "search" }), run("s/t1", { kind: "trial", search: "s", state: "failed" })];
  expect(ids(runs, { text: "t1" })).toStrictEqual(["s"]);
  expect(ids(runs, { text: "t1", open: ["s"] })).toStrictEqual(["s", "s/t1"]);
  expect(ids(runs, { states: ["failed"], open: ["s"] })).toStrictEqual(["s", "s/t1"]);
});

test("a trial whose search is not listed stands for itself", () => {
  expect(ids([run("s/t1", { kind: "trial", search: "s" })], {})).toStrictEqual(["s/t1"]);
});

test("states are counted, and metrics named", () => {
  expect(countStates([run("a"), run("b", { state: "running" }), run("c")])).toStrictEqual([["running", 1], ["finished", 2]]);
  expect(metricNames([run("a", { metrics: { b: 1, a: 2, text: "x" } })])).toStrictEqual(["a", "b"]);
});
