import { assert, expect, test } from "vitest";
import { axisMarks, differingKeys, flat, goodness, nearest, parallelOf, passes, rows, sorted, valueAt } from "../src/views/trials";
import { HOSTILE, search } from "./sample";

const found = search();
const parallel = parallelOf(found);
if (parallel === null) throw new Error("the sample has no parallel coordinates");
const [lr, width, act, loss] = parallel.axes;
if (lr === undefined || width === undefined || act === undefined || loss === undefined) throw new Error("the sample has four axes");

test("a brush keeps the trials that cross its axis there, brushes together those that cross all", () => {
  const all = parallel.lines.filter((line) => passes(line, parallel.axes, {}));
  expect(all.length).toBe(parallel.lines.length);
  const wide = parallel.lines.filter((line) => passes(line, parallel.axes, { width: [0.9, 1] }));
  expect(wide.length).toBe(10);
  expect(parallel.lines.filter((line) => passes(line, parallel.axes, { width: [0, 0.1] })).length).toBe(10);
  const both = parallel.lines.filter((line) => passes(line, parallel.axes, { width: [0.9, 1], loss: [0, 0.3] }));
  expect(both.length > 0 && both.length < wide.length && both.every((line) => wide.includes(line))).toBe(true);
});

test("a trial without a value does not cross a brushed axis", () => {
  const gaps = parallel.lines.filter((line) => line.value === null);
  expect(gaps.length > 0 && gaps.every((line) => !passes(line, parallel.axes, { loss: [0, 1] }))).toBe(true);
});

test("the best trial is the best also in its colour", () => {
  const best = parallel.lines.find((line) => line.trial_id === parallel.best);
  assert(best !== undefined);
  expect(goodness(best, "min")).toBe(1);
  expect(goodness(best, "max")).toBe(0);
  expect(goodness({ ...best, points: [0, null] }, "min")).toBe(null);
});

test("a place near a line finds that line, a place far from all finds none", () => {
  const lines = [
    { trial_id: "low", status: "", value: 1, points: [0, 0] }, { trial_id: "high", status: "", value: 1, points: [1, 1] },
    { trial_id: "gap", status: "", value: null, points: [0.5, null] },
  ];
  expect(nearest(lines, 50, 97, 100, 100)).toBe("low");
  expect(nearest(lines, 50, 4, 100, 100)).toBe("high");
  expect(nearest(lines, 50, 50, 100, 100)).toBe(null);
  expect(nearest([], 50, 50, 100, 100)).toBe(null);
});

test("places of an axis have values, by magnitude where it is logarithmic", () => {
  expect(Number(valueAt(lr, 0)).toPrecision(3)).toBe("0.000100");
  expect(Number(valueAt(lr, 1 / 3)).toPrecision(3)).toBe("0.00100");
  expect(valueAt(width, 1)).toBe(128);
  expect(valueAt(act, 0.5)).toBe("gelu");
  expect(valueAt({ ...lr, low: 3, high: 3 }, 0.7)).toBe(3);
});

test("few values are each marked, many by their ends, and marks keep apart", () => {
  expect(axisMarks(width, String).map((mark) => mark.text)).toStrictEqual(["16", "32", "64", "128"]);
  expect(axisMarks(lr, (value) => value.toPrecision(2)).map((mark) => mark.at.toFixed(1))).toStrictEqual(["0.0", "0.5", "1.0"]);
  expect(axisMarks(act, String).map((mark) => mark.text)).toStrictEqual(["relu", "gelu", HOSTILE]);
  const dense = axisMarks({ ...act, categories: Array.from({ length: 100 }, (_, index) => String(index)) }, String);
  expect(dense.length < 16 && dense.at(-1)?.text === "99").toBe(true);
});

test("each trial has its configuration, its value and its run", () => {
  const all = rows(found);
  expect(all.length).toBe(40);
  expect(all.filter((row) => row.isBest).length).toBe(1);
  expect(Object.keys(all[0]?.config ?? {})).toStrictEqual(["lr", "width", "act"]);
  expect(all[0]?.value).toBe(parallel.lines[0]?.value);
  expect(all[5]?.value).toBe(null);
});

test.each(["00007", "a1b2c_00007"])("trial %s, cloned twice, has several runs, and its value is that of the last", (id) => {
  const [trial] = found.trials;
  assert(trial !== undefined);
  const lives = ["trial_00007", "trial_00007-2", "trial_00007-10"].map((name) => ({ ...trial, id: `sweep/${name}`, name, metrics: { loss: 9 } }));
  const known = { ...parallel, best: id, lines: [{ trial_id: id, status: "RUNNING", value: 0.5, points: [0, 0, 0, 0] }] };
  const all = rows({ ...found, trials: lives, parallel: known as never });
  expect(all.map((row) => [row.trial, row.value, row.isBest])).toStrictEqual([[id, 9, false], [id, 9, false], [id, 0.5, true]]);
});

test("trials sort by value and by parameter, those without one last whichever way", () => {
  const all = rows(found);
  for (const down of [false, true]) {
    const values = sorted(all, " value", down).map((row) => row.value);
    const known = values.filter((value) => value !== null);
    expect(known).toStrictEqual([...known].sort((a, b) => (down ? b - a : a - b)));
    expect(values.slice(known.length)).toStrictEqual(values.slice(known.length).map(() => null));
  }
  expect(flat(sorted(all, "lr", false)[0]?.config ?? {})["lr"]).toBe(Math.min(...all.map((row) => Number(row.config["lr"]))));
});

test("nested parameters have paths, and only those that differ are columns", () => {
  expect(flat({ a: { b: 1, c: {} }, d: [1] })).toStrictEqual({ "a/b": 1, "a/c": {}, d: [1] });
  expect(differingKeys([{ a: 1, b: 2 }, { a: 1, b: 3 }, { a: 1, b: 3, c: null }])).toStrictEqual(["b", "c"]);
  expect(differingKeys([{ a: 1 }, { a: 1 }])).toStrictEqual(["a"]);
});
