import { test } from "node:test";
import { deepEqual, equal, ok } from "node:assert/strict";
import { causes, drawn, ticks, together } from "../src/views/timeline";
import { attempts, BEGAN, detail, summary } from "./sample";

test("bars lie where their attempts were, and the last one reaches to now", () => {
  const chart = drawn(detail(), 1000, BEGAN + 4000);
  const [one, two] = chart.lanes;
  equal(Math.round(one?.bar?.left ?? -1), 1);
  equal(Math.round(one?.bar?.width ?? -1), 324);
  equal(two?.bar?.open, true);
  equal(Math.round((two?.bar?.left ?? 0) + (two?.bar?.width ?? 0)), 1000);
});

test("marks stand in the lane of their attempt", () => {
  const chart = drawn(detail(), 1000, BEGAN + 4000);
  deepEqual(chart.lanes[0]?.marks.map((mark) => mark.kind), ["checkpoint", "checkpoint", "failure"]);
  ok(chart.lanes[1]?.marks.some((mark) => mark.kind === "hang"));
});

test("what belongs to no attempt has a lane below the others", () => {
  const stop = { at: BEGAN + 10, kind: "stop" as const, text: "asked to stop", attempt: 0, rank: null };
  const chart = drawn(detail({ timeline: [stop] }), 1000, BEGAN + 4000);
  equal(chart.lanes.length, 3);
  deepEqual(chart.lanes[2]?.marks[0]?.of, [stop]);
});

test("nothing is drawn outside of the chart", () => {
  const late = { at: BEGAN + 9_999, kind: "end" as const, text: "the end", attempt: 2, rank: null };
  const chart = drawn(detail({ timeline: [late], summary: summary({ ended_at: BEGAN + 4000 }) }), 300, BEGAN + 4000);
  for (const lane of chart.lanes) {
    ok(lane.bar === null || (lane.bar.left >= 0 && lane.bar.left + lane.bar.width <= 300.001));
    ok(lane.marks.every((mark) => mark.x >= 0 && mark.x <= 300));
  }
});

test("a run of no length at all is drawn", () => {
  const chart = drawn(detail({ attempts: [], timeline: [], summary: summary({ ended_at: BEGAN }) }), 300, BEGAN);
  ok(chart.to > chart.from);
});

test("a thousand checkpoints are as many marks as there is room for, and none is lost", () => {
  const many = Array.from({ length: 1000 }, (_, index) => ({ at: index, kind: "checkpoint" as const, text: String(index), attempt: 1, rank: null }));
  const marks = together(many, (at) => at / 2);
  ok(marks.length <= 500 / 13 + 1);
  equal(marks.reduce((sum, mark) => sum + mark.of.length, 0), 1000);
});

test("ticks stand at round times and not too near", () => {
  deepEqual(ticks(3600, 900).map((tick) => tick.after), [0, 600, 1200, 1800, 2400, 3000, 3600]);
  for (const span of [0.2, 1, 59, 3601, 1e5, 1e7, 1e9]) {
    const made = ticks(span, 800);
    ok(made.length >= 1 && made.length <= 10, `${span}: ${made.length}`);
  }
});

test("the first cause comes first, and the others are its echoes", () => {
  const failed = attempts()[0];
  ok(failed !== undefined);
  deepEqual(causes(failed).first.map((failure) => failure.rank), [2]);
  deepEqual(causes(failed).echoes.map((failure) => failure.rank), [1, 0]);
});

test("where no failure is the cause, the earliest stands for it", () => {
  const failed = attempts()[0];
  ok(failed !== undefined);
  const none = { ...failed, failures: failed.failures.map((failure) => ({ ...failure, is_cause: false })) };
  deepEqual(causes(none).first.map((failure) => failure.rank), [2]);
  deepEqual(causes({ ...failed, failures: [] }), { first: [], echoes: [] });
});
