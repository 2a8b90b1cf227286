// The lines of a log that are held: pages that came in are put at their end or their beginning.

import type { LogLine, LogPage } from "../api";

export const PAGE = 500;
// More are let go at the side that is not looked at.
export const MOST = 6000;

export interface Held {
  readonly lines: readonly LogLine[];
  // Where to go on towards the beginning; null at it.
  readonly before: number | null;
  // Where to go on towards the end.
  readonly after: number;
  readonly bytes: number;
  // Nothing lies between the last line and the end of the file, as far as was told.
  readonly atEnd: boolean;
}

// `isWhole`: no line comes after these.
export function first(page: LogPage, isWhole = true): Held {
  return { lines: page.lines, before: page.before, after: page.after, bytes: page.num_bytes, atEnd: isWhole };
}

// Where to ask for what comes later. The last line is asked for again: it may have been half a line.
export function from(held: Held, search: string): number {
  const last = held.lines[held.lines.length - 1];
  return search === "" && last !== undefined && held.atEnd ? last.offset : held.after;
}

export function older(held: Held, page: LogPage): Held {
  const known = held.lines[0]?.offset ?? Infinity;
  const lines = [...page.lines.filter((line) => line.offset < known), ...held.lines];
  const kept = lines.slice(0, MOST);
  const cut = lines[MOST];
  return {
    lines: kept,
    before: page.before,
    after: cut === undefined ? held.after : cut.offset,
    bytes: Math.max(held.bytes, page.num_bytes),
    atEnd: held.atEnd && cut === undefined,
  };
}

export function newer(held: Held, page: LogPage, limit = PAGE): Held {
  // A file that is shorter than it was has been written anew.
  if (page.num_bytes < held.bytes && page.num_bytes < held.after) return first(page);
  const atEnd = page.lines.length < limit;
  const again = page.lines.length === 1 && same(page.lines[0], held.lines[held.lines.length - 1]);
  if ((page.lines.length === 0 || again) && atEnd === held.atEnd && page.num_bytes === held.bytes) return held;
  const begin = page.lines[0]?.offset ?? Infinity;
  const lines = [...held.lines.filter((line) => line.offset < begin), ...page.lines];
  const kept = lines.length > MOST ? lines.slice(lines.length - MOST) : lines;
  return {
    lines: kept,
    before: kept.length < lines.length ? kept[0]?.offset ?? held.before : held.before,
    after: Math.max(held.after, page.after),
    bytes: page.num_bytes,
    atEnd,
  };
}

function same(a: LogLine | undefined, b: LogLine | undefined): boolean {
  return a?.offset === b?.offset && a?.text === b?.text;
}

export interface Chunk { readonly key: string; readonly lines: readonly LogLine[] }
const CHUNK = 100;

// In pieces with borders that stay where they are as lines come and go, so that only what is new is drawn.
export function chunks(lines: readonly LogLine[], before: readonly Chunk[] = []): readonly Chunk[] {
  const known = new Map(before.map((chunk) => [chunk.key, chunk]));
  const made: Chunk[] = [];
  let from = 0;
  while (from < lines.length) {
    const start = lines[from]?.offset ?? 0;
    const old = known.get(String(start));
    const many = old !== undefined && old.lines.length < CHUNK * 2 && old.lines.length >= CHUNK ? old.lines.length : CHUNK;
    const some = lines.slice(from, from + many);
    const same = old !== undefined && old.lines.length === some.length && old.lines.every((line, index) => line === some[index]);
    made.push(same ? old : { key: String(start), lines: some });
    from += many;
  }
  return made;
}

const ESCAPES = /\x1b(?:\[[0-9;?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[@-Z\\-_])/g;

// As a terminal would leave it: colours are dropped, and of what a progress bar wrote over itself the last is kept.
export function readable(text: string): string {
  const plain = text.includes("\x1b") ? text.replace(ESCAPES, "") : text;
  if (!plain.includes("\r")) return plain;
  const turns = plain.split("\r").filter((turn) => turn !== "");
  return turns[turns.length - 1] ?? "";
}

export interface Bit { readonly text: string; readonly found: boolean }

export function marked(text: string, search: string): readonly Bit[] {
  if (search === "") return [{ text, found: false }];
  const bits: Bit[] = [];
  const lower = text.toLowerCase();
  const sought = search.toLowerCase();
  // Where lower case has another length, places in the one are not places in the other.
  if (lower.length !== text.length) return [{ text, found: false }];
  let from = 0;
  for (let at = lower.indexOf(sought); at >= 0; at = lower.indexOf(sought, from)) {
    if (at > from) bits.push({ text: text.slice(from, at), found: false });
    bits.push({ text: text.slice(at, at + sought.length), found: true });
    from = at + sought.length;
  }
  if (from < text.length) bits.push({ text: text.slice(from), found: false });
  return bits;
}

export function asText(lines: readonly LogLine[]): string {
  return lines.map((line) => `${readable(line.text)}\n`).join("");
}
