import { test } from "node:test";
import { deepEqual, equal, rejects } from "node:assert/strict";
import { reported } from "../src/embedded";
import type { Report } from "../src/embedded";

const series = { name: "loss", x: [0, 10, 20, 30, 40], y: [5, 4, 3, 2, 1], low: [5, 4, 3, 2, 1], high: [5, 4, 3, 2, 1], num_points: 5, whole: true };
const lines = ["first", "Second", "third second", "last"].map((text, index) => ({ offset: index * 10, text }));
const report = {
  about: { version: "1", root: "/runs/a", control: true, now: 1 },
  detail: { summary: { id: "a" } },
  points: { step: [series], time: [] },
  use: [],
  logs: [{ attempt: 1, rank: 0, page: { lines, before: null, after: 40, num_bytes: 40 } }],
} as unknown as Report;
const source = reported(report);
const asked = { x: "step" as const, points: 100 };

test("a report shows its one run, and nothing can be done to it", async () => {
  equal((await source.runs()).length, 1);
  equal((await source.about()).control, false);
  equal(source.csvUrl("a"), null);
  await rejects(source.stop("a", true), /report/);
});

test("a part of its points reaches to the edges", async () => {
  const [part] = await source.metrics("a", { ...asked, names: ["loss"], range: [12, 28] });
  deepEqual(part?.x, [10, 20, 30]);
  deepEqual(part?.y, [4, 3, 2]);
  deepEqual((await source.metrics("a", { ...asked, names: ["loss"], range: null }))[0], series);
  deepEqual((await source.metrics("a", { ...asked, names: ["loss"], range: [50, 60] }))[0]?.x, []);
  deepEqual((await source.metrics("a", { ...asked, names: ["other"], range: null }))[0]?.x, []);
});

test("its logs are searched and paged", async () => {
  const log = { attempt: 1, rank: 0 };
  const texts = async (more: object) => (await source.logs("a", { ...log, ...more })).lines.map((line) => line.text);
  deepEqual(await texts({ search: "SECOND" }), ["Second", "third second"]);
  deepEqual(await texts({ limit: 2 }), ["third second", "last"]);
  deepEqual(await texts({ before: 20 }), ["first", "Second"]);
  deepEqual(await texts({ after: 30 }), ["last"]);
  equal((await source.logs("a", { ...log, limit: 2 })).before, 20);
  equal((await source.logs("a", { ...log, limit: 2, before: 20 })).before, null);
  deepEqual((await source.logs("a", { attempt: 2, rank: 0 })).lines, []);
});
