import { test } from "node:test";
import { equal } from "node:assert/strict";
import { ago, duration, grouped, number, plural, rate, share, size } from "../src/words";

test("whole numbers stay whole, and large ones are grouped", () => {
  equal(number(3), "3");
  equal(number(12345), "12,345");
  equal(number(-1234567), "-1,234,567");
});

test("other numbers have four digits", () => {
  equal(number(0.123456), "0.1235");
  equal(number(12.5), "12.5");
  equal(number(1234.56), "1,234.6");
  equal(number(0.00001234), "1.234e-5");
  equal(number(1.5e12), "1.5e12");
});

test("what is no number is told as it is", () => {
  equal(number(null), "–");
  equal(number(NaN), "nan");
  equal(number(-Infinity), "-inf");
  equal(number("inf"), "inf");
  equal(number(true), "true");
  equal(number({ a: 1 }), '{"a":1}');
});

test("durations", () => {
  equal(duration(0), "0 s");
  equal(duration(0.0123), "12.3 ms");
  equal(duration(2.34), "2.3 s");
  equal(duration(59.6), "1 min");
  equal(duration(75), "1 min 15 s");
  equal(duration(3600), "1 h");
  equal(duration(3600 * 5 + 59 * 60 + 50), "6 h");
  equal(duration(86400 * 2 + 3600 * 3), "2 d 3 h");
  equal(duration(null), "–");
});

test("sizes", () => {
  equal(size(0), "0 B");
  equal(size(999), "999 B");
  equal(size(1536), "1.5 KiB");
  equal(size(1024 ** 3 * 2.25), "2.25 GiB");
});

test("rates have the unit in which they are read best", () => {
  equal(rate(12.345, "steps"), "12.35 steps/s");
  equal(rate(0.05, "epochs"), "3 epochs/min");
  equal(rate(0.0005, "epochs"), "1.8 epochs/h");
  equal(rate(0, "steps"), "–");
});

test("shares, ages, counts", () => {
  equal(share(0.5), "50 %");
  equal(share(0.034), "3.4 %");
  equal(ago(100, 102), "now");
  equal(ago(100, 160), "1 min ago");
  equal(plural(1, "run"), "1 run");
  equal(plural(2000, "run"), "2,000 runs");
  equal(grouped(1234.5), "1,234.5");
});
