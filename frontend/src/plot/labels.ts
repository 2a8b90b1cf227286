// Formats values for axes and the pointer, and defines the steps between ticks. uPlot positions them.

import { day, duration, number, share, size, two } from "../words";

export type Kind = "number" | "seconds" | "clock" | "bytes" | "share";

// The steps that an axis may have, rising: one of them fits.
export function steps(kind: Kind): number[] {
  if (kind === "clock") return CLOCK;
  if (kind === "seconds") return [...DECIMAL.filter((step) => step < 1), ...TIMES, ...DECIMAL.filter((step) => step >= 1).map((days) => days * 86400)];
  return kind === "bytes" ? BINARY : DECIMAL;
}

const DECIMAL: number[] = [];
for (let power = -16; power <= 18; power += 1) for (const factor of [1, 2, 5]) DECIMAL.push(Number(`${factor}e${power}`));

const TIMES = [1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10800, 21600, 43200];

const CLOCK = [0.001, 0.01, 0.1, ...TIMES.filter((step) => step !== 2 && step !== 120), ...[1, 2, 7, 30, 90, 365].map((days) => days * 86400)];

const BINARY: number[] = [];
for (let power = 0; power < 6; power += 1) {
  for (const factor of [1, 2, 4, 5, 8, 10, 16, 20, 32, 50, 64, 100, 128, 200, 256, 500, 512]) BINARY.push(factor * 1024 ** power);
}

// Labels of ticks, with enough digits to distinguish them. Null means no label.
export function labels(at: readonly (number | null)[], kind: Kind, step: number, log = false): string[] {
  return at.map((value, index) => {
    if (value === null) return "";
    if (kind === "bytes") return size(value);
    if (kind === "share") return share(value);
    if (kind === "seconds") return value === 0 ? "0" : duration(value);
    if (kind === "clock") return clockLabel(value, index > 0 ? at[index - 1] ?? null : null, step);
    return plain(value, log ? Math.abs(value) : step);
  });
}

export function formatLabel(value: number, kind: Kind): string {
  if (kind === "bytes") return size(value);
  if (kind === "share") return share(value);
  if (kind === "seconds") return duration(value);
  if (kind === "clock") return clock(value, true);
  return number(value);
}

function clockLabel(at: number, before: number | null, step: number): string {
  const time = new Date(at * 1000);
  const isNewDay = before !== null && day(new Date(before * 1000)) !== day(time);
  if (step >= 86400 || (isNewDay && step >= 3600)) return day(time).slice(5);
  return step < 1 ? `${clock(at, true)}${(at % 1).toFixed(Math.round(-Math.log10(step))).slice(1)}` : clock(at, step < 60);
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
    return value.toExponential(digits).replace(/\.?0+e/, "e").replace("e+", "e");
  }
  if (size >= 1e4 && step >= 100) return `${Number((value / 1000).toFixed(step >= 1000 ? 0 : 1))}k`;
  return String(Number(value.toFixed(Math.max(0, Math.min(10, Math.ceil(-Math.log10(step) - 1e-9))))));
}
