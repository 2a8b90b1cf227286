import { assert, expect, test } from "vitest";
import { causes, layoutTimeline, ticks, groupMarks } from "../src/views/timeline";
import { attempts, BEGAN, detail, summary } from "./sample";

test("bars lie where their attempts were, and the last one reaches to now", () => {
  const chart = layoutTimeline(detail(), 1000, BEGAN + 4000);
  const [one, two] = chart.lanes;
  expect(Math.round(one?.bar?.left ?? -1)).toBe(1);
  expect(Math.round(one?.bar?.width ?? -1)).toBe(324);
  expect(two?.bar?.open).toBe(true);
  expect(Math.round((two?.bar?.left ?? 0) + (two?.bar?.width ?? 0))).toBe(1000);
});

test("marks stand in the lane of their attempt", () => {
  const chart = layoutTimeline(detail(), 1000, BEGAN + 4000);
  expect(chart.lanes[0]?.marks.map((mark) => mark.kind)).toStrictEqual(["checkpoint", "checkpoint", "failure"]);
  expect(chart.lanes[1]?.marks.some((mark) => mark.kind === "hang")).toBe(true);
});

test("what belongs to no attempt has a lane below the others", () => {
  const stop = { at: BEGAN + 10, kind: "stop" as const, text: "asked to stop", attempt: 0, rank: null };
  const chart = layoutTimeline(detail({ timeline: [stop] }), 1000, BEGAN + 4000);
  expect(chart.lanes.length).toBe(3);
  expect(chart.lanes[2]?.marks[0]?.of).toStrictEqual([stop]);
});

test("nothing is drawn outside of the chart", () => {
  const late = { at: BEGAN + 9_999, kind: "end" as const, text: "the end", attempt: 2, rank: null };
  const chart = layoutTimeline(detail({ timeline: [late], summary: summary({ ended_at: BEGAN + 4000 }) }), 300, BEGAN + 4000);
  for (const lane of chart.lanes) {
    expect(lane.bar === null || (lane.bar.left >= 0 && lane.bar.left + lane.bar.width <= 300.001)).toBe(true);
    expect(lane.marks.every((mark) => mark.x >= 0 && mark.x <= 300)).toBe(true);
  }
});

test("a run of no length at all is drawn", () => {
  const chart = layoutTimeline(detail({ attempts: [], timeline: [], summary: summary({ ended_at: BEGAN }) }), 300, BEGAN);
  expect(chart.to > chart.from).toBe(true);
});

test("a thousand checkpoints are as many marks as there is room for, and none is lost", () => {
  const many = Array.from({ length: 1000 }, (_, index) => ({ at: index, kind: "checkpoint" as const, text: String(index), attempt: 1, rank: null }));
  const marks = groupMarks(many, (at) => at / 2);
  expect(marks.length <= 500 / 13 + 1).toBe(true);
  expect(marks.reduce((sum, mark) => sum + mark.of.length, 0)).toBe(1000);
});

test("ticks stand at round times and not too near", () => {
  expect(ticks(3600, 900).map((tick) => tick.after)).toStrictEqual([0, 600, 1200, 1800, 2400, 3000, 3600]);
  for (const span of [0.2, 1, 59, 3601, 1e5, 1e7, 1e9]) {
    const made = ticks(span, 800);
    expect(made.length >= 1 && made.length <= 10, `${span}: ${made.length}`).toBe(true);
  }
});

test("the first cause comes first, and the others are its echoes", () => {
  const failed = attempts()[0];
  assert(failed !== undefined);
  expect(causes(failed).first.map((failure) => failure.rank)).toStrictEqual([2]);
  expect(causes(failed).echoes.map((failure) => failure.rank)).toStrictEqual([1, 0]);
});

test("where no failure is the cause, the earliest stands for it", () => {
  const failed = attempts()[0];
  assert(failed !== undefined);
  const none = { ...failed, failures: failed.failures.map((failure) => ({ ...failure, is_cause: false })) };
  expect(causes(none).first.map((failure) => failure.rank)).toStrictEqual([2]);
  expect(causes({ ...failed, failures: [] })).toStrictEqual({ first: [], echoes: [] });
});
