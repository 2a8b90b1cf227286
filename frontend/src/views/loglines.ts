// The loaded lines of a log. New pages are added at the end or the beginning.

import type { LogLine, LogPage } from "../api";

export const PAGE = 500;
// Beyond this, lines are dropped at the far side.
export const MOST = 6000;

export interface LogBuffer {
  readonly lines: readonly LogLine[];
  // Where to continue towards the beginning; null at it.
  readonly before: number | null;
  // Where to continue towards the end.
  readonly after: number;
  readonly bytes: number;
  // The last line is the end of the file, as far as known.
  readonly atEnd: boolean;
}

// `isWhole`: there are no later lines.
export function startBuffer(page: LogPage, isWhole = true): LogBuffer {
  return { lines: page.lines, before: page.before, after: page.after, bytes: page.num_bytes, atEnd: isWhole };
}

// Where the next page starts. The last line is fetched again, since it may have been incomplete.
export function nextOffset(buffer: LogBuffer, search: string): number {
  const last = buffer.lines[buffer.lines.length - 1];
  return search === "" && last !== undefined && buffer.atEnd ? last.offset : buffer.after;
}

export function prependPage(buffer: LogBuffer, page: LogPage): LogBuffer {
  const known = buffer.lines[0]?.offset ?? Infinity;
  const lines = [...page.lines.filter((line) => line.offset < known), ...buffer.lines];
  const kept = lines.slice(0, MOST);
  const cut = lines[MOST];
  return {
    lines: kept,
    before: page.before,
    after: cut === undefined ? buffer.after : cut.offset,
    bytes: Math.max(buffer.bytes, page.num_bytes),
    atEnd: buffer.atEnd && cut === undefined,
  };
}

export function appendPage(buffer: LogBuffer, page: LogPage, limit = PAGE): LogBuffer {
  // A file that became shorter was rewritten.
  if (page.num_bytes < buffer.bytes && page.num_bytes < buffer.after) return startBuffer(page);
  const atEnd = page.lines.length < limit;
  const again = page.lines.length === 1 && same(page.lines[0], buffer.lines[buffer.lines.length - 1]);
  if ((page.lines.length === 0 || again) && atEnd === buffer.atEnd && page.num_bytes === buffer.bytes) return buffer;
  const begin = page.lines[0]?.offset ?? Infinity;
  const lines = [...buffer.lines.filter((line) => line.offset < begin), ...page.lines];
  const kept = lines.length > MOST ? lines.slice(lines.length - MOST) : lines;
  return {
    lines: kept,
    before: kept.length < lines.length ? kept[0]?.offset ?? buffer.before : buffer.before,
    after: Math.max(buffer.after, page.after),
    bytes: page.num_bytes,
    atEnd,
  };
}

function same(a: LogLine | undefined, b: LogLine | undefined): boolean {
  return a?.offset === b?.offset && a?.text === b?.text;
}

export interface Chunk { readonly key: string; readonly lines: readonly LogLine[] }
const CHUNK = 100;

// Chunks with stable borders, so that only new lines are rendered.
export function chunks(lines: readonly LogLine[], before: readonly Chunk[] = []): readonly Chunk[] {
  const known = new Map(before.map((chunk) => [chunk.key, chunk]));
  const result: Chunk[] = [];
  let from = 0;
  while (from < lines.length) {
    const start = lines[from]?.offset ?? 0;
    const old = known.get(String(start));
    const many = old !== undefined && old.lines.length < CHUNK * 2 && old.lines.length >= CHUNK ? old.lines.length : CHUNK;
    const some = lines.slice(from, from + many);
    const same = old !== undefined && old.lines.length === some.length && old.lines.every((line, index) => line === some[index]);
    result.push(same ? old : { key: String(start), lines: some });
    from += many;
  }
  return result;
}

const ESCAPES = /\x1b(?:\[[0-9;?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[@-Z\\-_])/g;

// As a terminal would show it: without colours, and with only the last state of a progress bar.
export function readable(text: string): string {
  const plain = text.includes("\x1b") ? text.replace(ESCAPES, "") : text;
  if (!plain.includes("\r")) return plain;
  const turns = plain.split("\r").filter((turn) => turn !== "");
  return turns[turns.length - 1] ?? "";
}

export interface Bit { readonly text: string; readonly found: boolean }

export function highlight(text: string, search: string): readonly Bit[] {
  if (search === "") return [{ text, found: false }];
  const bits: Bit[] = [];
  const lower = text.toLowerCase();
  const needle = search.toLowerCase();
  // If lower case changes the length, positions do not match.
  if (lower.length !== text.length) return [{ text, found: false }];
  let from = 0;
  for (let at = lower.indexOf(needle); at >= 0; at = lower.indexOf(needle, from)) {
    if (at > from) bits.push({ text: text.slice(from, at), found: false });
    bits.push({ text: text.slice(at, at + needle.length), found: true });
    from = at + needle.length;
  }
  if (from < text.length) bits.push({ text: text.slice(from), found: false });
  return bits;
}

export function asText(lines: readonly LogLine[]): string {
  return lines.map((line) => `${readable(line.text)}\n`).join("");
}
