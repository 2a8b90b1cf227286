import { test } from "node:test";
import { deepEqual, equal, ok } from "node:assert/strict";
import { labels, place, roomy, ticks, valueAt } from "../src/plot/scale";
import type { Kind, Scale } from "../src/plot/scale";

const near = (a: number, b: number) => ok(Math.abs(a - b) <= 1e-9 * Math.max(1, Math.abs(a), Math.abs(b)), `${a} is not ${b}`);

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
        ok(made.length <= most + 1, `${kind} ${from} ${to}: ${made.length} of ${most}`);
        made.forEach((value, index) => {
          ok(value >= from - (to - from) * 1e-6 && value <= to + (to - from) * 1e-6, `${kind}: ${value} is outside ${from} ${to}`);
          ok(index === 0 || value > (made[index - 1] as number));
        });
      }
    }
  }
});

test("ticks are round", () => {
  deepEqual(ticks([0, 1], 5, "number"), [0, 0.2, 0.4, 0.6, 0.8, 1]);
  deepEqual(ticks([-0.3, 0.3], 4, "number"), [-0.2, 0, 0.2]);
  deepEqual(ticks([0, 100], 4, "seconds"), [0, 30, 60, 90]);
  deepEqual(ticks([0, 4 * 1024 ** 3], 4, "bytes"), [0, 1, 2, 3, 4].map((count) => count * 1024 ** 3));
  deepEqual(labels([0, 0.2, 0.4], "number"), ["0", "0.2", "0.4"]);
  deepEqual(labels([0, 5000, 10000], "number"), ["0", "5000", "10k"]);
  deepEqual(labels([0, 1024 ** 3], "bytes"), ["0 B", "1 GiB"]);
  deepEqual(labels([0, 0.5, 1], "share"), ["0 %", "50 %", "100 %"]);
});

test("of a log scale they are powers, or parts of one", () => {
  deepEqual(ticks([1e-3, 1e3], 8, "number", true), [1e-3, 1e-2, 0.1, 1, 10, 100, 1000]);
  deepEqual(ticks([1e-6, 1e6], 5, "number", true).length <= 5, true);
  deepEqual(ticks([0.9, 6], 5, "number", true), [1, 2, 5]);
  ok(ticks([2.1, 2.9], 5, "number", true).length >= 2);
});

test("labels of neighbouring ticks differ", () => {
  for (const [from, to] of [[0, 1], [1000, 1001], [1e6, 1.2e6], [12000, 12900], [1e-7, 5e-7], [99.99, 100.01], [2e9, 9e9]] as const) {
    const made = labels(ticks([from, to], 5, "number"), "number");
    equal(new Set(made).size, made.length, made.join(" "));
  }
});

test("nothing to show has a scale, too", () => {
  deepEqual(ticks([1, 1], 5, "number"), []);
  deepEqual(ticks([NaN, 1], 5, "number"), []);
  deepEqual(ticks([0, Infinity], 5, "number"), []);
  deepEqual(roomy(Infinity, -Infinity, false), [0, 1]);
  const [low, high] = roomy(5, 5, false);
  ok(low < 5 && high > 5);
  const [logLow, logHigh] = roomy(0.01, 100, true);
  ok(logLow > 0 && logLow < 0.01 && logHigh > 100);
});
