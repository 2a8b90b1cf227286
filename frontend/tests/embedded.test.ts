import { expect, test } from "vitest";
import { reportSource } from "../src/embedded";
import type { ReportData } from "../src/api";

const series = { name: "loss", x: [0, 10, 20, 30, 40], y: [5, 4, 3, 2, 1], low: [5, 4, 3, 2, 1], high: [5, 4, 3, 2, 1], num_points: 5, whole: true };
const lines = ["first", "Second", "third second", "last"].map((text, index) => ({ offset: index * 10, text }));
const report = {
  about: { version: "1", root: "/runs/a", control: true, now: 1 },
  detail: { summary: { id: "a" } },
  points: { step: [series], time: [] },
  use: [],
  logs: [{ attempt: 1, rank: 0, page: { lines, before: null, after: 40, num_bytes: 40 } }],
} as unknown as ReportData;
const source = reportSource(report);
const asked = { x: "step" as const, points: 100 };

test("a report shows its one run, and nothing can be done to it", async () => {
  expect((await source.runs()).length).toBe(1);
  expect((await source.about()).control).toBe(false);
  expect(source.csvUrl("a")).toBe(null);
  await expect(source.stop("a", true)).rejects.toThrow(/report/);
});

test("a part of its points reaches to the edges", async () => {
  const [part] = await source.metrics("a", { ...asked, names: ["loss"], range: [12, 28] });
  expect(part?.x).toStrictEqual([10, 20, 30]);
  expect(part?.y).toStrictEqual([4, 3, 2]);
  expect((await source.metrics("a", { ...asked, names: ["loss"], range: null }))[0]).toStrictEqual(series);
  expect((await source.metrics("a", { ...asked, names: ["loss"], range: [50, 60] }))[0]?.x).toStrictEqual([]);
  expect((await source.metrics("a", { ...asked, names: ["other"], range: null }))[0]?.x).toStrictEqual([]);
});

test("its logs are searched and paged", async () => {
  const log = { attempt: 1, rank: 0 };
  const texts = async (more: object) => (await source.logs("a", { ...log, ...more })).lines.map((line) => line.text);
  expect(await texts({ search: "SECOND" })).toStrictEqual(["Second", "third second"]);
  expect(await texts({ limit: 2 })).toStrictEqual(["third second", "last"]);
  expect(await texts({ before: 20 })).toStrictEqual(["first", "Second"]);
  expect(await texts({ after: 30 })).toStrictEqual(["last"]);
  expect((await source.logs("a", { ...log, limit: 2 })).before).toBe(20);
  expect((await source.logs("a", { ...log, limit: 2, before: 20 })).before).toBe(null);
  expect((await source.logs("a", { attempt: 2, rank: 0 })).lines).toStrictEqual([]);
});
