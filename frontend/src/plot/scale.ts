// From values to pixels and back, and where a scale has its ticks.

import { day, duration, number, share, size, two } from "../words";

export type Range = readonly [number, number];
export type Kind = "number" | "seconds" | "clock" | "bytes" | "share";

export interface Scale {
  readonly domain: Range;
  readonly pixels: Range;
  readonly log: boolean;
}

export function place(scale: Scale, value: number): number {
  const [from, to] = scale.domain;
  const [first, last] = scale.pixels;
  const part = scale.log ? (Math.log10(value) - Math.log10(from)) / (Math.log10(to) - Math.log10(from)) : (value - from) / (to - from);
  return first + part * (last - first);
}

export function valueAt(scale: Scale, pixel: number): number {
  const [from, to] = scale.domain;
  const [first, last] = scale.pixels;
  const part = (pixel - first) / (last - first);
  if (!scale.log) return from + part * (to - from);
  return 10 ** (Math.log10(from) + part * (Math.log10(to) - Math.log10(from)));
}

// A domain that shows the values with some room around them; a constant has room as well.
export function roomy(low: number, high: number, log: boolean): Range {
  if (!(low <= high)) return log ? [0.1, 10] : [0, 1];
  if (log) {
    if (low === high) return [low / 2, high * 2];
    const room = (Math.log10(high) - Math.log10(low)) * 0.05;
    return [low / 10 ** room, high * 10 ** room];
  }
  if (low === high) {
    const room = low === 0 ? 1 : Math.abs(low) * 0.1;
    return [low - room, high + room];
  }
  const room = (high - low) * 0.05;
  return [low - room, high + room];
}

export function ticks(domain: Range, atMost: number, kind: Kind, log = false): number[] {
  const [from, to] = domain;
  if (!(to > from) || !Number.isFinite(to - from) || atMost < 1) return [];
  if (log) return logTicks(from, to, atMost);
  if (kind === "clock") return clockTicks(from, to, atMost);
  const step = kind === "seconds" ? timeStep((to - from) / atMost) : kind === "bytes" ? bytesStep((to - from) / atMost) : niceStep((to - from) / atMost);
  return multiples(from, to, step);
}

// Labels of ticks, with as many digits as tell them apart.
export function labels(at: readonly number[], kind: Kind): string[] {
  if (kind === "bytes") return at.map(size);
  if (kind === "share") return at.map(share);
  if (kind === "seconds") return at.map((value) => (value === 0 ? "0" : duration(value)));
  if (kind === "clock") return clockLabels(at);
  const step = at.length > 1 ? Math.min(...at.slice(1).map((value, index) => Math.abs(value - (at[index] ?? 0)))) : Math.abs(at[0] ?? 1);
  return at.map((value) => plain(value, step));
}

export function said(value: number, kind: Kind): string {
  if (kind === "bytes") return size(value);
  if (kind === "share") return share(value);
  if (kind === "seconds") return duration(value);
  if (kind === "clock") return clock(value, true);
  return number(value);
}

function niceStep(rough: number): number {
  const power = 10 ** Math.floor(Math.log10(rough));
  for (const factor of [1, 2, 5]) if (power * factor >= rough * 0.999999) return power * factor;
  return power * 10;
}

const TIME_STEPS = [1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10800, 21600, 43200, 86400];

function timeStep(rough: number): number {
  if (rough < 1) return niceStep(rough);
  return TIME_STEPS.find((step) => step >= rough) ?? niceStep(rough / 86400) * 86400;
}

function bytesStep(rough: number): number {
  if (rough <= 1) return 1;
  const unit = 1024 ** Math.floor(Math.log(rough) / Math.log(1024));
  const steps = [1, 2, 4, 5, 8, 10, 16, 20, 32, 50, 64, 100, 128, 200, 256, 500, 512, 1024];
  return unit * (steps.find((step) => step * unit >= rough * 0.999999) ?? 1024);
}

function multiples(from: number, to: number, step: number): number[] {
  const made: number[] = [];
  // A tick at the very edge is not lost to rounding.
  const slack = (to - from) * 1e-9;
  const first = Math.ceil((from - slack) / step);
  const last = Math.floor((to + slack) / step);
  // `index * step` and no sum, which would drift.
  for (let index = first; index <= last && made.length < 1000; index += 1) made.push(tidy(index * step, step));
  return made;
}

function tidy(value: number, step: number): number {
  const digits = Math.max(0, Math.min(100, 2 - Math.floor(Math.log10(step))));
  const made = digits > 20 ? value : Number(value.toFixed(digits));
  return made === 0 ? 0 : made;
}

function logTicks(from: number, to: number, atMost: number): number[] {
  const first = Math.ceil(Math.log10(from) - 1e-9);
  const last = Math.floor(Math.log10(to) + 1e-9);
  const count = last - first + 1;
  if (count >= 3 || (count === 2 && atMost < 5)) {
    const every = Math.max(1, Math.ceil(count / atMost));
    const made: number[] = [];
    for (let power = Math.ceil(first / every) * every; power <= last; power += every) made.push(Number(`1e${power}`));
    return made;
  }
  // Within a decade or two: 1, 2, 5, or as on a plain scale.
  const within: number[] = [];
  for (let power = first - 1; power <= last + 1; power += 1) {
    for (const factor of [1, 2, 5]) {
      const value = Number(`${factor}e${power}`);
      if (value >= from * 0.999999 && value <= to * 1.000001) within.push(value);
    }
  }
  return within.length >= 2 ? within : multiples(from, to, niceStep((to - from) / atMost));
}

function clockTicks(from: number, to: number, atMost: number): number[] {
  const step = timeStep((to - from) / atMost);
  // Whole hours and days of the reader's own zone.
  const shift = step > 900 ? new Date(from * 1000).getTimezoneOffset() * 60 : 0;
  return multiples(from - shift, to - shift, step).map((value) => value + shift);
}

function clockLabels(at: readonly number[]): string[] {
  const step = at.length > 1 ? (at[1] ?? 0) - (at[0] ?? 0) : 60;
  return at.map((value, index) => {
    const time = new Date(value * 1000);
    const before = index > 0 ? new Date((at[index - 1] ?? 0) * 1000) : null;
    if (step >= 86400 || (before !== null && day(before) !== day(time) && step >= 3600)) return day(time).slice(5);
    return clock(value, step < 60);
  });
}

function clock(at: number, seconds: boolean): string {
  const time = new Date(at * 1000);
  return `${two(time.getHours())}:${two(time.getMinutes())}${seconds ? `:${two(time.getSeconds())}` : ""}`;
}

function plain(value: number, step: number): string {
  if (value === 0) return "0";
  const size = Math.abs(value);
  if (size >= 1e6 || size < 1e-4) {
    const digits = Math.max(0, Math.min(6, Math.floor(Math.log10(size)) - Math.floor(Math.log10(step || size))));
    if (size >= 1e6 && size < 1e12) {
      const [unit, name] = size >= 1e9 ? [1e9, "G"] : [1e6, "M"];
      return `${Number((value / unit).toFixed(Math.max(0, Math.min(6, Math.ceil(-Math.log10(step / unit))))))}${name}`;
    }
    return value.toExponential(digits).replace("e+", "e");
  }
  if (size >= 1e4 && step >= 100) return `${Number((value / 1000).toFixed(step >= 1000 ? 0 : 1))}k`;
  return String(Number(value.toFixed(Math.max(0, Math.min(10, Math.ceil(-Math.log10(step) - 1e-9))))));
}
