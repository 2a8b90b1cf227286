// The layout of the timeline: attempts as bars and entries as marks, in pixels. Close marks of one kind are grouped.

import type { Attempt, RunSnapshot, TimelineEntry } from "../api";

export type MarkKind = "checkpoint" | "failure" | "hang" | "preemption" | "stop" | "resize" | "end" | "other";

export interface Bar {
  readonly attempt: Attempt;
  readonly left: number;
  readonly width: number;
  // The attempt is still running.
  readonly open: boolean;
}

export interface Mark {
  readonly kind: MarkKind;
  readonly x: number;
  // In the order in which they happened.
  readonly of: readonly TimelineEntry[];
}

export interface Lane { readonly bar: Bar | null; readonly marks: readonly Mark[] }

export interface TimelineLayout {
  readonly from: number;
  readonly to: number;
  readonly lanes: readonly Lane[];
  readonly ticks: readonly { readonly x: number; readonly after: number }[];
}

const NEAR = 13;
const LEAST_BAR = 3;
const TICK_EVERY = 90;

// `now` is the end of what is still running.
export function layoutTimeline(detail: RunSnapshot, width: number, now: number): TimelineLayout {
  const { summary, attempts } = detail;
  const marks = detail.timeline.filter((each) => each.kind !== "driver" && each.kind !== "attempt");
  const from = Math.min(summary.began_at, ...attempts.slice(0, 1).map((attempt) => attempt.began_at));
  const ends = [summary.ended_at ?? now, ...attempts.slice(-1).map((attempt) => attempt.ended_at ?? now)];
  const last = marks[marks.length - 1];
  const to = Math.max(from + 0.01, ...ends, last?.at ?? from);
  const place = (at: number): number => ((Math.min(Math.max(at, from), to) - from) / (to - from)) * width;
  const own = new Map<number, TimelineEntry[]>(attempts.map((attempt) => [attempt.number, []]));
  const unassigned: TimelineEntry[] = [];
  for (const mark of marks) (own.get(mark.attempt) ?? unassigned).push(mark);
  const lanes = attempts.map((attempt) => {
    const left = Math.min(place(attempt.began_at), width - LEAST_BAR);
    const right = place(attempt.ended_at ?? to);
    return {
      bar: { attempt, left, width: Math.max(LEAST_BAR, right - left), open: attempt.ended_at === null },
      marks: groupMarks(own.get(attempt.number) ?? [], place),
    };
  });
  return {
    from,
    to,
    lanes: unassigned.length > 0 ? [...lanes, { bar: null, marks: groupMarks(unassigned, place) }] : lanes,
    ticks: ticks(to - from, width),
  };
}

export function groupMarks(entries: readonly TimelineEntry[], place: (at: number) => number): readonly Mark[] {
  const marks: { kind: MarkKind; x: number; of: TimelineEntry[] }[] = [];
  const latest = new Map<MarkKind, { kind: MarkKind; x: number; of: TimelineEntry[] }>();
  for (const each of entries) {
    const kind = each.kind === "driver" || each.kind === "attempt" ? "other" : each.kind;
    const x = place(each.at);
    const before = latest.get(kind);
    if (before !== undefined && x - before.x < NEAR) {
      before.of.push(each);
      continue;
    }
    const mark = { kind, x, of: [each] };
    latest.set(kind, mark);
    marks.push(mark);
  }
  return marks;
}

const STEPS = [1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10800, 21600, 43200, 86400, 172800, 604800];

// Seconds since the beginning, at round numbers.
export function ticks(span: number, width: number): readonly { readonly x: number; readonly after: number }[] {
  const most = Math.max(1, Math.floor(width / TICK_EVERY));
  const fine = span < 1 ? span / most : STEPS.find((step) => span / step <= most) ?? Math.ceil(span / most / 604800) * 604800;
  const result = [];
  for (let after = 0; after <= span * 1.0001; after += fine) result.push({ x: (after / span) * width, after });
  return result;
}

// Failures by time: the causes first, then secondary failures.
export function causes(attempt: Attempt): { readonly first: Attempt["failures"]; readonly echoes: Attempt["failures"] } {
  const sorted = [...attempt.failures].sort((a, b) => a.at - b.at);
  const first = sorted.filter((failure) => failure.is_cause);
  if (first.length > 0) return { first, echoes: sorted.filter((failure) => !failure.is_cause) };
  return { first: sorted.slice(0, 1), echoes: sorted.slice(1) };
}
