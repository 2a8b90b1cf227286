import { test } from "node:test";
import { deepEqual, equal, ok } from "node:assert/strict";
import type { Spent } from "../src/api";
import { meaning, parts, stageShares } from "../src/views/timespent";
import { detail } from "./sample";

const NOTHING: Spent = { wall_s: 0, starting_s: 0, data_s: 0, compute_s: 0, report_s: 0, checkpoint_s: 0, between_s: 0 };

test("the parts sum to the wall time, and their shares to one", () => {
  const all = parts(detail().spent);
  equal(all.reduce((sum, part) => sum + part.seconds, 0), 3600);
  ok(Math.abs(all.reduce((sum, part) => sum + part.share, 0) - 1) < 1e-9);
  equal(all.length, 6);
});

test("time that nobody accounts for is a part of its own", () => {
  const all = parts({ ...NOTHING, wall_s: 100, compute_s: 60 });
  deepEqual(all.at(-1), { name: "untold", seconds: 40, share: 0.4, what: "not accounted for yet" });
});

test("parts that are a little more than the wall time never make a share above one", () => {
  const all = parts({ ...NOTHING, wall_s: 10, compute_s: 10.02, data_s: 0.01 });
  ok(all.every((part) => part.share <= 1));
  ok(Math.abs(all.reduce((sum, part) => sum + part.share, 0) - 1) < 1e-9);
});

test("workers that wait for data are told, with the stage that limits and what to do", () => {
  const { spent, stages, limited_by } = detail();
  deepEqual(meaning(spent, stages, limited_by), ["data: workers waited 41 % of the time; stage map(decode) limits: give it more processes."]);
});

test("the costliest part is told first", () => {
  const said = meaning({ ...NOTHING, wall_s: 100, compute_s: 30, checkpoint_s: 50, data_s: 20 }, [], null);
  equal(said.length, 2);
  ok(said[0]?.startsWith("checkpoint: 50 %"));
  ok(said[1]?.startsWith("data: workers waited 20 %"));
});

test("a run that computes is told so", () => {
  const said = meaning({ ...NOTHING, wall_s: 100, compute_s: 96, data_s: 4 }, [], null);
  deepEqual(said, ["compute: 96 % of the time went into your own code; nothing else holds it up."]);
});

test("nothing is said of a run that has not begun", () => {
  deepEqual(meaning(NOTHING, [], null), ["There is nothing to tell yet."]);
  ok(parts(NOTHING).every((part) => part.share === 0));
});

test("a stage that did nothing has no shares", () => {
  const stage = detail().stages[0];
  ok(stage !== undefined);
  deepEqual(stageShares({ ...stage, busy_s: 0, waited_for_room_s: 0 }), { busy: 0, input: 0, room: 0 });
});
