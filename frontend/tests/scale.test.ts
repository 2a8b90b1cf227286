import { expect, test } from "vitest";
import { labels, place, roomy, ticks, valueAt } from "../src/plot/scale";
import type { Kind, Scale } from "../src/plot/scale";

const near = (a: number, b: number) => expect(Math.abs(a - b) <= 1e-9 * Math.max(1, Math.abs(a), Math.abs(b)), `${a} is not ${b}`).toBe(true);

test("a pixel's value is placed at that pixel", () => {
  const scales: Scale[] = [
    { domain: [0, 10], pixels: [40, 400], log: false },
    { domain: [-5, 1e9], pixels: [300, 10], log: false },
    { domain: [1e-6, 1e3], pixels: [300, 10], log: true },
  ];
  for (const scale of scales) for (const pixel of [10, 40, 123.4, 300, 400]) near(place(scale, valueAt(scale, pixel)), pixel);
});

test("ticks lie within, rise, and are not many more than asked for", () => {
  const kinds: Kind[] = ["number", "seconds", "bytes", "share", "clock"];
  for (const kind of kinds) {
    for (const [from, to] of [[0, 1], [-3, 7], [1e-9, 2e-9], [0.1, 12345], [1.7e9, 1.7e9 + 40], [0, 86400 * 30], [5, 5.0000001], [0, 3e12]] as const) {
      for (const most of [2, 5, 9]) {
        const made = ticks([from, to], most, kind);
        expect(made.length <= most + 1, `${kind} ${from} ${to}: ${made.length} of ${most}`).toBe(true);
        made.forEach((value, index) => {
          expect(value >= from - (to - from) * 1e-6 && value <= to + (to - from) * 1e-6, `${kind}: ${value} is outside ${from} ${to}`).toBe(true);
          expect(index === 0 || value > (made[index - 1] as number)).toBe(true);
        });
      }
    }
  }
});

test("ticks are round", () => {
  expect(ticks([0, 1], 5, "number")).toStrictEqual([0, 0.2, 0.4, 0.6, 0.8, 1]);
  expect(ticks([-0.3, 0.3], 4, "number")).toStrictEqual([-0.2, 0, 0.2]);
  expect(ticks([0, 100], 4, "seconds")).toStrictEqual([0, 30, 60, 90]);
  expect(ticks([0, 4 * 1024 ** 3], 4, "bytes")).toStrictEqual([0, 1, 2, 3, 4].map((count) => count * 1024 ** 3));
  expect(labels([0, 0.2, 0.4], "number")).toStrictEqual(["0", "0.2", "0.4"]);
  expect(labels([0, 5000, 10000], "number")).toStrictEqual(["0", "5000", "10k"]);
  expect(labels([0, 1024 ** 3], "bytes")).toStrictEqual(["0 B", "1 GiB"]);
  expect(labels([0, 0.5, 1], "share")).toStrictEqual(["0 %", "50 %", "100 %"]);
});

test("of a log scale they are powers, or parts of one", () => {
  expect(ticks([1e-3, 1e3], 8, "number", true)).toStrictEqual([1e-3, 1e-2, 0.1, 1, 10, 100, 1000]);
  expect(ticks([1e-6, 1e6], 5, "number", true).length <= 5).toStrictEqual(true);
  expect(ticks([0.9, 6], 5, "number", true)).toStrictEqual([1, 2, 5]);
  expect(ticks([2.1, 2.9], 5, "number", true).length >= 2).toBe(true);
});

test("labels of neighbouring ticks differ", () => {
  for (const [from, to] of [[0, 1], [1000, 1001], [1e6, 1.2e6], [12000, 12900], [1e-7, 5e-7], [99.99, 100.01], [2e9, 9e9]] as const) {
    const made = labels(ticks([from, to], 5, "number"), "number");
    expect(new Set(made).size, made.join(" ")).toBe(made.length);
  }
});

test("nothing to show has a scale, too", () => {
  expect(ticks([1, 1], 5, "number")).toStrictEqual([]);
  expect(ticks([NaN, 1], 5, "number")).toStrictEqual([]);
  expect(ticks([0, Infinity], 5, "number")).toStrictEqual([]);
  expect(roomy(Infinity, -Infinity, false)).toStrictEqual([0, 1]);
  const [low, high] = roomy(5, 5, false);
  expect(low < 5 && high > 5).toBe(true);
  const [logLow, logHigh] = roomy(0.01, 100, true);
  expect(logLow > 0 && logLow < 0.01 && logHigh > 100).toBe(true);
});
