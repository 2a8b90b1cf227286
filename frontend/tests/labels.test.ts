import { expect, test } from "vitest";
import { labels, formatLabel, steps } from "../src/plot/labels";
import type { Kind } from "../src/plot/labels";

test("steps rise, and there is one for every plot", () => {
  for (const kind of ["number", "seconds", "bytes", "share"] as const satisfies readonly Kind[]) {
    const all = steps(kind);
    expect(all.every((step, index) => index === 0 || step > (all[index - 1] as number)), kind).toBe(true);
    expect(all[0]).toBeLessThanOrEqual(1);
    expect(all.at(-1)).toBeGreaterThan(1e15);
  }
});

test("steps are those that a person would count in", () => {
  expect(steps("number")).toContain(0.2);
  expect(steps("number")).not.toContain(2.5);
  expect(steps("seconds")).toEqual(expect.arrayContaining([15, 30, 600, 21600, 86400]));
  expect(steps("bytes")).toEqual(expect.arrayContaining([512, 1024, 1024 ** 3]));
});

test("labels are as short as tells them apart", () => {
  expect(labels([0, 0.2, 0.4], "number", 0.2)).toStrictEqual(["0", "0.2", "0.4"]);
  expect(labels([0, 5000, 10000], "number", 5000)).toStrictEqual(["0", "5000", "10k"]);
  expect(labels([0, 1024 ** 3], "bytes", 1024 ** 3)).toStrictEqual(["0 B", "1 GiB"]);
  expect(labels([0, 0.5, 1], "share", 0.5)).toStrictEqual(["0 %", "50 %", "100 %"]);
  expect(labels([0, 30, 90], "seconds", 30)).toStrictEqual(["0", "30 s", "1 min 30 s"]);
  expect(labels([1e-5, 0.001, null, 1, 1000], "number", 0, true)).toStrictEqual(["1e-5", "0.001", "", "1", "1000"]);
});

test("labels of neighbouring ticks differ", () => {
  for (const [from, step] of [[0, 0.2], [1000, 0.2], [1e6, 50_000], [12_000, 200], [1e-7, 1e-7], [99.99, 0.005], [2e9, 2e9]] as const) {
    const made = labels([0, 1, 2, 3, 4].map((times) => from + times * step), "number", step);
    expect(new Set(made).size, made.join(" ")).toBe(made.length);
  }
});

test("a clock tells the day where it is another one", () => {
  const noon = new Date(2026, 4, 1, 12).getTime() / 1000;
  expect(labels([noon, noon + 3600 * 6, noon + 3600 * 12], "clock", 3600 * 6)).toStrictEqual(["12:00", "18:00", "05-02"]);
  expect(labels([noon, noon + 10], "clock", 10)).toStrictEqual(["12:00:00", "12:00:10"]);
  expect(labels([noon + 0.25, noon + 0.3], "clock", 0.01)).toStrictEqual(["12:00:00.25", "12:00:00.30"]);
  expect(labels([noon, noon + 86400], "clock", 86400)).toStrictEqual(["05-01", "05-02"]);
  expect(formatLabel(noon, "clock")).toBe("12:00:00");
});
