// Formats numbers, times and sizes like the command line.

export function shortened(value: number): string {
  return number(value);
}

// At most five digits that mean something: 0.03125, 12,345, 1.2e-9.
export function number(value: unknown): string {
  if (value === null || value === undefined) return "–";
  if (typeof value === "boolean" || typeof value === "string") return String(value);
  if (typeof value !== "number") return JSON.stringify(value) ?? String(value);
  if (Number.isNaN(value)) return "nan";
  if (!Number.isFinite(value)) return value > 0 ? "inf" : "-inf";
  if (value === 0) return "0";
  const size = Math.abs(value);
  if (Number.isInteger(value) && size < 1e9) return grouped(value);
  if (size >= 1e6 || size < 1e-4) return value.toExponential(3).replace(/\.?0+e/, "e").replace("e+", "e");
  if (size >= 1000) return grouped(Math.round(value * 10) / 10);
  return trimmed(value.toPrecision(4));
}

export function duration(seconds: number | null | undefined): string {
  if (seconds === null || seconds === undefined || !Number.isFinite(seconds)) return "–";
  if (seconds < 0) return `-${duration(-seconds)}`;
  if (seconds < 0.001) return seconds === 0 ? "0 s" : `${trimmed((seconds * 1e6).toPrecision(2))} µs`;
  if (seconds < 1) return `${trimmed((seconds * 1000).toPrecision(3))} ms`;
  if (seconds < 10) return `${trimmed(seconds.toFixed(1))} s`;
  const whole = Math.round(seconds);
  if (whole < 60) return `${whole} s`;
  if (whole < 3600) return joined(Math.floor(whole / 60), "min", whole % 60, "s");
  const minutes = Math.round(seconds / 60);
  if (minutes < 1440) return joined(Math.floor(minutes / 60), "h", minutes % 60, "min");
  const hours = Math.round(seconds / 3600);
  return joined(Math.floor(hours / 24), "d", hours % 24, "h");
}

export function size(bytes: number | null | undefined): string {
  if (bytes === null || bytes === undefined || !Number.isFinite(bytes)) return "–";
  const units = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];
  let value = bytes;
  let unit = 0;
  while (Math.abs(value) >= 999.5 && unit < units.length - 1) {
    value /= 1024;
    unit += 1;
  }
  return `${unit === 0 ? value : trimmed(value.toPrecision(3))} ${units[unit]}`;
}

export function share(part: number | null | undefined): string {
  if (part === null || part === undefined || !Number.isFinite(part)) return "–";
  const percent = part * 100;
  return `${percent > 0 && percent < 10 ? trimmed(percent.toFixed(1)) : Math.round(percent)} %`;
}

export function rate(perSecond: number | null | undefined, of: string): string {
  if (perSecond === null || perSecond === undefined || !Number.isFinite(perSecond) || perSecond <= 0) return "–";
  if (perSecond >= 0.1) return `${number(perSecond)} ${of}/s`;
  if (perSecond * 60 >= 0.1) return `${number(perSecond * 60)} ${of}/min`;
  return `${number(perSecond * 3600)} ${of}/h`;
}

// The day and the time, in the reader's own time zone; today only the time.
export function when(at: number | null | undefined, now: number = Date.now() / 1000): string {
  if (at === null || at === undefined || !Number.isFinite(at)) return "–";
  const time = new Date(at * 1000);
  const clock = `${two(time.getHours())}:${two(time.getMinutes())}:${two(time.getSeconds())}`;
  return sameDay(time, new Date(now * 1000)) ? clock : `${day(time)} ${clock}`;
}

export function ago(at: number | null | undefined, now: number = Date.now() / 1000): string {
  if (at === null || at === undefined || !Number.isFinite(at)) return "–";
  const seconds = now - at;
  if (seconds < 5) return "now";
  return `${rough(seconds)} ago`;
}

export function plural(count: number, one: string, several = `${one}s`): string {
  return `${grouped(count)} ${count === 1 ? one : several}`;
}

export function day(time: Date): string {
  return `${time.getFullYear()}-${two(time.getMonth() + 1)}-${two(time.getDate())}`;
}

export function two(value: number): string {
  return String(value).padStart(2, "0");
}

export function grouped(value: number): string {
  const [whole, rest] = String(value).split(".");
  const spaced = (whole ?? "").replace(/\B(?=(\d{3})+$)/g, ",");
  return rest === undefined ? spaced : `${spaced}.${rest}`;
}

function rough(seconds: number): string {
  if (seconds < 60) return `${Math.round(seconds)} s`;
  if (seconds < 3600) return `${Math.round(seconds / 60)} min`;
  if (seconds < 86400) return `${Math.round(seconds / 3600)} h`;
  return `${Math.round(seconds / 86400)} d`;
}

function joined(large: number, unit: string, small: number, smaller: string): string {
  return small === 0 ? `${large} ${unit}` : `${large} ${unit} ${small} ${smaller}`;
}

function sameDay(a: Date, b: Date): boolean {
  return day(a) === day(b);
}

function trimmed(text: string): string {
  return text.includes(".") && !text.includes("e") ? text.replace(/\.?0+$/, "") : text;
}
