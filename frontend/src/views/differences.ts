// The differences between two runs: lines of a diff by kind, metrics with their change.

import type { ValueChange } from "../api";

export type LineKind = "added" | "removed" | "where" | "file" | "same";
export interface DiffLine { readonly kind: LineKind; readonly text: string; readonly a: number | null; readonly b: number | null }

// The lines of a `diff -u`, with their numbers in both files.
export function diffLines(diff: string): readonly DiffLine[] {
  let a = 0;
  let b = 0;
  const lines = diff.split("\n");
  if (lines[lines.length - 1] === "") lines.pop();
  let within = false;
  return lines.map((text): DiffLine => {
    const where = /^@@ -(\d+)(?:,\d+)? \+(\d+)(?:,\d+)? @@/.exec(text);
    if (where !== null) {
      a = Number(where[1]);
      b = Number(where[2]);
      within = true;
      return { kind: "where", text, a: null, b: null };
    }
    if (!within) return { kind: "file", text, a: null, b: null };
    if (text.startsWith("+")) return { kind: "added", text, a: null, b: b++ };
    if (text.startsWith("-")) return { kind: "removed", text, a: a++, b: null };
    if (text.startsWith("\\")) return { kind: "where", text, a: null, b: null };
    return { kind: "same", text, a: a++, b: b++ };
  });
}

export interface ComparedMetric extends ValueChange { readonly differs: boolean; readonly change: number | null; readonly share: number | null }

// Those that differ first.
export function compareMetrics(changed: readonly ValueChange[]): readonly ComparedMetric[] {
  const all = changed.map((each) => {
    const both = typeof each.a === "number" && typeof each.b === "number";
    const change = both ? (each.b as number) - (each.a as number) : null;
    const share = change === null || each.a === 0 ? null : change / Math.abs(each.a as number);
    return { ...each, differs: JSON.stringify(each.a) !== JSON.stringify(each.b), change, share };
  });
  return [...all.filter((each) => each.differs), ...all.filter((each) => !each.differs)];
}
