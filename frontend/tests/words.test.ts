import { expect, test } from "vitest";
import { ago, duration, grouped, number, plural, rate, share, size } from "../src/words";

test("whole numbers stay whole, and large ones are grouped", () => {
  expect(number(3)).toBe("3");
  expect(number(12345)).toBe("12,345");
  expect(number(-1234567)).toBe("-1,234,567");
});

test("other numbers have four digits", () => {
  expect(number(0.123456)).toBe("0.1235");
  expect(number(12.5)).toBe("12.5");
  expect(number(1234.56)).toBe("1,234.6");
  expect(number(0.00001234)).toBe("1.234e-5");
  expect(number(1.5e12)).toBe("1.5e12");
});

test("a value that is not a number stays as it is", () => {
  expect(number(null)).toBe("–");
  expect(number(NaN)).toBe("nan");
  expect(number(-Infinity)).toBe("-inf");
  expect(number("inf")).toBe("inf");
  expect(number(true)).toBe("true");
  expect(number({ a: 1 })).toBe('{"a":1}');
});

test("durations", () => {
  expect(duration(0)).toBe("0 s");
  expect(duration(0.0123)).toBe("12.3 ms");
  expect(duration(2.34)).toBe("2.3 s");
  expect(duration(59.6)).toBe("1 min");
  expect(duration(75)).toBe("1 min 15 s");
  expect(duration(3600)).toBe("1 h");
  expect(duration(3600 * 5 + 59 * 60 + 50)).toBe("6 h");
  expect(duration(86400 * 2 + 3600 * 3)).toBe("2 d 3 h");
  expect(duration(null)).toBe("–");
});

test("sizes", () => {
  expect(size(0)).toBe("0 B");
  expect(size(999)).toBe("999 B");
  expect(size(1536)).toBe("1.5 KiB");
  expect(size(1024 ** 3 * 2.25)).toBe("2.25 GiB");
});

test("rates have the unit in which they are read best", () => {
  expect(rate(12.345, "steps")).toBe("12.35 steps/s");
  expect(rate(0.05, "epochs")).toBe("3 epochs/min");
  expect(rate(0.0005, "epochs")).toBe("1.8 epochs/h");
  expect(rate(0, "steps")).toBe("–");
});

test("shares, ages, counts", () => {
  expect(share(0.5)).toBe("50 %");
  expect(share(0.034)).toBe("3.4 %");
  expect(ago(100, 102)).toBe("now");
  expect(ago(100, 160)).toBe("1 min ago");
  expect(plural(1, "run")).toBe("1 run");
  expect(plural(2000, "run")).toBe("2,000 runs");
  expect(grouped(1234.5)).toBe("1,234.5");
});
