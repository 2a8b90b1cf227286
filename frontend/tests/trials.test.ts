import { test } from "node:test";
import { deepEqual, equal, ok } from "node:assert/strict";
import { axisMarks, differingKeys, flat, goodness, nearest, parallelOf, passes, rows, sorted, valueAt } from "../src/views/trials";
import { HOSTILE, search } from "./sample";

const found = search();
const parallel = parallelOf(found);
if (parallel === null) throw new Error("the sample has no parallel coordinates");
const [lr, width, act, loss] = parallel.axes;
if (lr === undefined || width === undefined || act === undefined || loss === undefined) throw new Error("the sample has four axes");

test("a brush keeps the trials that cross its axis there, brushes together those that cross all", () => {
  const all = parallel.lines.filter((line) => passes(line, parallel.axes, {}));
  equal(all.length, parallel.lines.length);
  const wide = parallel.lines.filter((line) => passes(line, parallel.axes, { width: [0.9, 1] }));
  equal(wide.length, 10);
  equal(parallel.lines.filter((line) => passes(line, parallel.axes, { width: [0, 0.1] })).length, 10);
  const both = parallel.lines.filter((line) => passes(line, parallel.axes, { width: [0.9, 1], loss: [0, 0.3] }));
  ok(both.length > 0 && both.length < wide.length && both.every((line) => wide.includes(line)));
});

test("a trial without a value does not cross a brushed axis", () => {
  const gaps = parallel.lines.filter((line) => line.value === null);
  ok(gaps.length > 0 && gaps.every((line) => !passes(line, parallel.axes, { loss: [0, 1] })));
});

test("the best trial is the best also in its colour", () => {
  const best = parallel.lines.find((line) => line.trial_id === parallel.best);
  ok(best !== undefined);
  equal(goodness(best, "min"), 1);
  equal(goodness(best, "max"), 0);
  equal(goodness({ ...best, points: [0, null] }, "min"), null);
});

test("a place near a line finds that line, a place far from all finds none", () => {
  const lines = [
    { trial_id: "low", status: "", value: 1, points: [0, 0] }, { trial_id: "high", status: "", value: 1, points: [1, 1] },
    { trial_id: "gap", status: "", value: null, points: [0.5, null] },
  ];
  equal(nearest(lines, 50, 97, 100, 100), "low");
  equal(nearest(lines, 50, 4, 100, 100), "high");
  equal(nearest(lines, 50, 50, 100, 100), null);
  equal(nearest([], 50, 50, 100, 100), null);
});

test("places of an axis have values, by magnitude where it is logarithmic", () => {
  equal(Number(valueAt(lr, 0)).toPrecision(3), "0.000100");
  equal(Number(valueAt(lr, 1 / 3)).toPrecision(3), "0.00100");
  equal(valueAt(width, 1), 128);
  equal(valueAt(act, 0.5), "gelu");
  equal(valueAt({ ...lr, low: 3, high: 3 }, 0.7), 3);
});

test("few values are each marked, many by their ends, and marks keep apart", () => {
  deepEqual(axisMarks(width, String).map((mark) => mark.text), ["16", "32", "64", "128"]);
  deepEqual(axisMarks(lr, (value) => value.toPrecision(2)).map((mark) => mark.at.toFixed(1)), ["0.0", "0.5", "1.0"]);
  deepEqual(axisMarks(act, String).map((mark) => mark.text), ["relu", "gelu", HOSTILE]);
  const dense = axisMarks({ ...act, categories: Array.from({ length: 100 }, (_, index) => String(index)) }, String);
  ok(dense.length < 16 && dense.at(-1)?.text === "99");
});

test("each trial has its configuration, its value and its run", () => {
  const all = rows(found);
  equal(all.length, 40);
  equal(all.filter((row) => row.isBest).length, 1);
  deepEqual(Object.keys(all[0]?.config ?? {}), ["lr", "width", "act"]);
  equal(all[0]?.value, parallel.lines[0]?.value);
  equal(all[5]?.value, null);
});

test("a trial that went on from another one's work has several runs, and its value is that of the last", () => {
  const [trial] = found.trials;
  ok(trial !== undefined);
  const lives = ["trial_00007", "trial_00007-2", "trial_00007-10"].map((name) => ({ ...trial, id: `sweep/${name}`, name, metrics: { loss: 9 } }));
  const known = { ...parallel, best: "00007", lines: [{ trial_id: "00007", status: "RUNNING", value: 0.5, points: [0, 0, 0, 0] }] };
  const all = rows({ ...found, trials: lives, parallel: known as never });
  deepEqual(all.map((row) => [row.trial, row.value, row.isBest]), [["00007", 9, false], ["00007", 9, false], ["00007", 0.5, true]]);
});

test("trials sort by value and by parameter, those without one last whichever way", () => {
  const all = rows(found);
  for (const down of [false, true]) {
    const values = sorted(all, " value", down).map((row) => row.value);
    const known = values.filter((value) => value !== null);
    deepEqual(known, [...known].sort((a, b) => (down ? b - a : a - b)));
    deepEqual(values.slice(known.length), values.slice(known.length).map(() => null));
  }
  equal(flat(sorted(all, "lr", false)[0]?.config ?? {})["lr"], Math.min(...all.map((row) => Number(row.config["lr"]))));
});

test("nested parameters have paths, and only those that differ are columns", () => {
  deepEqual(flat({ a: { b: 1, c: {} }, d: [1] }), { "a/b": 1, "a/c": {}, d: [1] });
  deepEqual(differingKeys([{ a: 1, b: 2 }, { a: 1, b: 3 }, { a: 1, b: 3, c: null }]), ["b", "c"]);
  deepEqual(differingKeys([{ a: 1 }, { a: 1 }]), ["a"]);
});
