// Points of several runs, as plots take them. Pure; `charts.tsx` loads and shows them.

import type { Points } from "./api";
import type { Range } from "./plot/range";

export interface Group { readonly prefix: string; readonly names: readonly string[] }

// By what stands before the first `/`; what has none comes first.
export function grouped(names: readonly string[]): Group[] {
  const groups = new Map<string, string[]>();
  for (const name of names) {
    const cut = name.indexOf("/");
    const prefix = cut > 0 ? name.slice(0, cut) : "";
    groups.set(prefix, [...(groups.get(prefix) ?? []), name]);
  }
  return [...groups].map(([prefix, own]) => ({ prefix, names: own.sort() })).sort((a, b) => (a.prefix < b.prefix ? -1 : 1));
}

// A filter of names: plain words, all of which are to be found; or /a regular expression/.
export function named(filter: string): (name: string) => boolean {
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

// The fine points of a part, put into the coarse ones of the whole: what is panned to shows at once.
export function spliced(whole: Points, part: Points | undefined): Points {
  const [first, last] = [part?.x[0], part?.x.at(-1)];
  if (part === undefined || first === undefined || last === undefined || whole.whole) return whole;
  let before = 0;
  while (before < whole.x.length && (whole.x[before] as number) < first) before += 1;
  let after = before;
  while (after < whole.x.length && (whole.x[after] as number) <= last) after += 1;
  const put = <T>(coarse: readonly T[], fine: readonly T[]): T[] => [...coarse.slice(0, before), ...fine, ...coarse.slice(after)];
  return {
    ...whole, x: put(whole.x, part.x), y: put(whole.y, part.y), low: put(whole.low, part.low), high: put(whole.high, part.high),
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
