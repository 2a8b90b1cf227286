// Points of several runs, prepared for plots. Pure; `charts.tsx` loads and shows them.

import type { Points } from "./api";
import type { Range } from "./plot/range";

export interface Group { readonly prefix: string; readonly names: readonly string[] }

// Groups names by the part before the first `/`; names without one come first.
export function groupByPrefix(names: readonly string[]): Group[] {
  const groups = new Map<string, string[]>();
  for (const name of names) {
    const slash = name.indexOf("/");
    const prefix = slash > 0 ? name.slice(0, slash) : "";
    groups.set(prefix, [...(groups.get(prefix) ?? []), name]);
  }
  return [...groups].map(([prefix, own]) => ({ prefix, names: own.sort() })).sort((a, b) => (a.prefix < b.prefix ? -1 : 1));
}

// A filter of names: words that must all occur, or /a regular expression/.
export function nameFilter(filter: string): (name: string) => boolean {
  const text = filter.trim();
  if (text.length > 2 && text.startsWith("/") && text.endsWith("/")) {
    try {
      const pattern = new RegExp(text.slice(1, -1), "i");
      return (name) => pattern.test(name);
    } catch {
      return () => false;
    }
  }
  const words = text.toLowerCase().split(/\s+/).filter((word) => word !== "");
  return (name) => words.every((word) => name.toLowerCase().includes(word));
}

// Inserts the fine points of a part into the coarse ones of the whole, so that panning shows something at once.
export function splicePoints(whole: Points, part: Points | undefined): Points {
  const [first, last] = [part?.x[0], part?.x.at(-1)];
  if (part === undefined || first === undefined || last === undefined || whole.whole) return whole;
  let before = 0;
  while (before < whole.x.length && (whole.x[before] as number) < first) before += 1;
  let after = before;
  while (after < whole.x.length && (whole.x[after] as number) <= last) after += 1;
  const splice = <T>(coarse: readonly T[], fine: readonly T[]): T[] => [...coarse.slice(0, before), ...fine, ...coarse.slice(after)];
  return {
    ...whole, x: splice(whole.x, part.x), y: splice(whole.y, part.y), low: splice(whole.low, part.low), high: splice(whole.high, part.high),
  };
}

export function extentOf(all: Iterable<Points>): Range | null {
  let low = Infinity;
  let high = -Infinity;
  for (const { x } of all) {
    low = Math.min(low, x[0] ?? Infinity);
    high = Math.max(high, x.at(-1) ?? -Infinity);
  }
  return low <= high ? [low, high] : null;
}

export function keyOf(id: string, name: string): string {
  return `${id}\n${name}`;
}
