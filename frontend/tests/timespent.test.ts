import { assert, expect, test } from "vitest";
import type { TimeBreakdown } from "../src/api";
import { explainTime, parts, saveParts, stageShares } from "../src/views/timespent";
import { detail } from "./sample";

const NOTHING: TimeBreakdown = { wall_s: 0, starting_s: 0, data_s: 0, compute_s: 0, report_s: 0, checkpoint_s: 0, between_s: 0 };

test("the parts sum to the wall time, and their shares to one", () => {
  const all = parts(detail().spent);
  expect(all.reduce((sum, part) => sum + part.seconds, 0)).toBe(3600);
  expect(Math.abs(all.reduce((sum, part) => sum + part.share, 0) - 1) < 1e-9).toBe(true);
  expect(all.length).toBe(6);
});

test("time that nobody accounts for is a part of its own", () => {
  const all = parts({ ...NOTHING, wall_s: 100, compute_s: 60 });
  expect(all.at(-1)).toStrictEqual({ name: "unaccounted", seconds: 40, share: 0.4, what: "not accounted for yet" });
});

test("parts that are a little more than the wall time never make a share above one", () => {
  const all = parts({ ...NOTHING, wall_s: 10, compute_s: 10.02, data_s: 0.01 });
  expect(all.every((part) => part.share <= 1)).toBe(true);
  expect(Math.abs(all.reduce((sum, part) => sum + part.share, 0) - 1) < 1e-9).toBe(true);
});

test("workers that wait for data are told, with the stage that limits and what to do", () => {
  const { spent, stages, limited_by } = detail();
  expect(explainTime(spent, stages, limited_by)).toStrictEqual(["data: workers waited 41 % of the time; stage map(decode) limits: give it more processes."]);
});

test("the costliest part comes first", () => {
  const sentences = explainTime({ ...NOTHING, wall_s: 100, compute_s: 30, checkpoint_s: 50, data_s: 20 }, [], null);
  expect(sentences.length).toBe(2);
  expect(sentences[0]?.startsWith("checkpoint: 50 %")).toBe(true);
  expect(sentences[1]?.startsWith("data: workers waited 20 %")).toBe(true);
});

test("a compute-bound run is described as such", () => {
  const sentences = explainTime({ ...NOTHING, wall_s: 100, compute_s: 96, data_s: 4 }, [], null);
  expect(sentences).toStrictEqual(["compute: 96 % of the time went into your own code; nothing else slows it down."]);
});

test("nothing is sentences of a run that has not begun", () => {
  expect(explainTime(NOTHING, [], null)).toStrictEqual(["No time has been measured yet."]);
  expect(parts(NOTHING).every((part) => part.share === 0)).toBe(true);
});

test("the parts of a save have an upload only if there was one", () => {
  const { saves } = detail();
  assert(saves !== null);
  expect(saveParts(saves).map((part) => [part.name, part.seconds])).toStrictEqual([["Copy", 0.02], ["Write", 0.11], ["Hash", 0.03], ["Sync", 0.004], ["Commit", 0.002]]);
  expect(saveParts({ ...saves, upload_s: 3 }).map((part) => part.name)).toContain("Upload");
});

test("a stage that did nothing has no shares", () => {
  const stage = detail().stages[0];
  assert(stage !== undefined);
  expect(stageShares({ ...stage, busy_s: 0, waited_for_room_s: 0 })).toStrictEqual({ busy: 0, input: 0, room: 0 });
});
