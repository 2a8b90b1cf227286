// Which runs a list shows, and in what order. Pure: `runs.tsx` draws it.

import type { State, Summary } from "./api";

export interface ListFilter {
  readonly text: string;
  readonly states: readonly string[];
  readonly sort: string;
  readonly down: boolean;
  // Ids of searches whose trials are shown.
  readonly open: readonly string[];
}

export interface Row {
  readonly run: Summary;
  readonly depth: 0 | 1;
  readonly trials: number;
  readonly open: boolean;
}

// All words must occur in the name, the path, the state, the kind or the names of metrics.
export function matches(run: Summary, text: string): boolean {
  const words = text.toLowerCase().split(/\s+/).filter((word) => word !== "");
  if (words.length === 0) return true;
  const hay = [run.name, run.path, run.id, run.state, run.kind, ...Object.keys(run.metrics), run.best?.metric ?? ""].join("\n").toLowerCase();
  return words.every((word) => hay.includes(word));
}

export function listRows(runs: readonly Summary[], filter: ListFilter): Row[] {
  const searches = new Set(runs.filter((run) => run.kind === "search").map((run) => run.id));
  const trials = new Map<string, Summary[]>();
  for (const run of runs) {
    if (run.search === null || !searches.has(run.search)) continue;
    const siblings = trials.get(run.search) ?? [];
    siblings.push(run);
    trials.set(run.search, siblings);
  }
  const isWanted = (run: Summary) => matches(run, filter.text) && (filter.states.length === 0 || filter.states.includes(run.state));
  const compare = order(filter.sort, filter.down);
  const result: Row[] = [];
  const top = runs.filter((run) => run.search === null || !searches.has(run.search));
  for (const run of [...top].sort(compare)) {
    const own = trials.get(run.id) ?? [];
    const matching = own.filter(isWanted);
    const isOpen = filter.open.includes(run.id);
    if (!isWanted(run) && matching.length === 0) continue;
    result.push({ run, depth: 0, trials: own.length, open: isOpen });
    if (!isOpen) continue;
    // A search that matches shows all its trials, filtered only by state.
    const visible = matches(run, filter.text) ? own.filter((each) => filter.states.length === 0 || filter.states.includes(each.state)) : matching;
    for (const trial of [...visible].sort(compare)) result.push({ run: trial, depth: 1, trials: 0, open: false });
  }
  return result;
}

export function countStates(runs: readonly Summary[]): [State, number][] {
  const counts = new Map<State, number>();
  for (const run of runs) counts.set(run.state, (counts.get(run.state) ?? 0) + 1);
  return [...counts].sort((a, b) => STATES.indexOf(a[0]) - STATES.indexOf(b[0]));
}

const STATES: readonly State[] = [
  "running", "starting", "waiting", "stopping", "validating", "failed", "lost", "preempted", "stopped", "finished",
];

export function metricNames(runs: readonly Summary[]): string[] {
  const names = new Set<string>();
  for (const run of runs) for (const [name, value] of Object.entries(run.metrics)) if (typeof value === "number") names.add(name);
  return [...names].sort();
}

// What a column sorts by; null goes last either way.
export function sortKey(run: Summary, column: string, now = 0): number | string | null {
  switch (column) {
    case "name": return run.name.toLowerCase();
    case "state": return STATES.indexOf(run.state);
    case "progress": return run.progress;
    case "step": return run.num_reports;
    case "best": return run.best?.value ?? null;
    case "workers": return run.num_workers;
    case "failures": return run.num_failures;
    case "took": return (run.ended_at ?? (now || run.updated_at)) - run.began_at;
    case "updated": return run.updated_at;
    case "began": return run.began_at;
  }
  if (!column.startsWith("metric:")) return run.began_at;
  const value = run.metrics[column.slice("metric:".length)];
  return typeof value === "number" ? value : null;
}

const collator = new Intl.Collator(undefined, { numeric: true });

function order(column: string, down: boolean): (a: Summary, b: Summary) => number {
  return (a, b) => {
    const [x, y] = [sortKey(a, column), sortKey(b, column)];
    if (x === null || y === null) return x === y ? collator.compare(a.id, b.id) : x === null ? 1 : -1;
    const by = typeof x === "string" && typeof y === "string" ? collator.compare(x, y) : Number(x) - Number(y);
    return by === 0 ? collator.compare(a.id, b.id) : down ? -by : by;
  };
}
