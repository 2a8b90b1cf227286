// A grid of plots of metrics, one line for each run: of one run on its page, of several when they are compared. Only
// visible plots are loaded, and a zoomed part is loaded again with more points.

import { Fragment } from "preact";
import { useCallback, useEffect, useMemo, useRef, useState } from "preact/hooks";
import type { Points } from "./api";
import { savePageCsv, savePagePng } from "./export";
import { Note, textOf, useVisible } from "./parts";
import { Plot } from "./plot/Plot";
import type { Range } from "./plot/range";
import type { Line, PlotProps } from "./plot/types";
import { extentOf, groupByPrefix, keyOf, nameFilter, splicePoints } from "./points";
import { numberOf, one } from "./router";
import type { Patch, Query } from "./router";
import type { Source } from "./source";
import { plural } from "./words";

export interface Shown {
  readonly id: string;
  readonly name: string;
  readonly color: string;
  readonly dashed: boolean;
  // Grows when there are more points.
  readonly last: number;
}

export interface ChartsProps {
  readonly source: Source;
  readonly title: string;
  readonly runs: readonly Shown[];
  readonly names: readonly string[];
  readonly marks?: (x: "step" | "time") => PlotProps["marks"];
  readonly query: Query;
  readonly set: (patch: Patch) => void;
}

const COARSE = 1000;
const FINE = 2000;

export function Charts({ source, title, runs, names, marks, query, set }: ChartsProps) {
  const filter = one(query, "f") ?? "";
  const x = one(query, "x") === "time" ? "time" as const : "step" as const;
  const logY = one(query, "log") === "1";
  const smoothing = Math.max(0, Math.min(0.99, numberOf(query, "smooth") ?? 0));
  const [from, to] = [numberOf(query, "from"), numberOf(query, "to")];
  const range = useMemo<Range | null>(() => (from !== null && to !== null && from < to ? [from, to] : null), [from, to]);
  const groups = useMemo(() => groupByPrefix(names.filter(nameFilter(filter))), [names, filter]);
  const [visible, setVisible] = useState<ReadonlySet<string>>(new Set());
  const onVisible = useCallback((name: string, yes: boolean) => setVisible((before) => {
    if (before.has(name) === yes) return before;
    const after = new Set(before);
    if (yes) after.add(name);
    else after.delete(name);
    return after;
  }), []);
  const wanted = useMemo(() => [...visible].filter((name) => names.includes(name)).sort(), [visible, names]);
  const coarse = usePoints(source, runs, wanted, x, null, COARSE);
  // Complete points cannot be loaded with more detail.
  const isWhole = (key: string) => coarse.points.get(key)?.whole ?? true;
  const fine = usePoints(source, runs, wanted, x, range, FINE, isWhole);
  const whole = useMemo(() => extentOf(coarse.points.values()), [coarse.points]);
  const shownMarks = useMemo(() => marks?.(x) ?? [], [marks, x]);
  const setRange = useCallback((next: Range | null) => {
    set(next === null ? { from: null, to: null } : { from: String(next[0]), to: String(next[1]) });
  }, [set]);
  const shown = groups.reduce((sum, group) => sum + group.names.length, 0);
  const error = coarse.error ?? fine.error;
  return (
    <Fragment>
      <div class="row tools">
        <input type="search" class="search" data-search placeholder="Filter metrics  ( / )" aria-label="Filter metrics" value={filter}
          onInput={(event) => set({ f: event.currentTarget.value })} />
        <label class="field">smooth
          <input type="range" min="0" max="0.99" step="0.01" value={String(smoothing)} aria-label="Smoothing"
            onInput={(event) => set({ smooth: event.currentTarget.value === "0" ? null : event.currentTarget.value })} />
          <output class="mono smooth-value">{smoothing.toFixed(2)}</output>
        </label>
        <label class="field">x
          <select value={x} aria-label="x axis" onChange={(event) => set({ x: event.currentTarget.value === "time" ? "time" : null, from: null, to: null })}>
            <option value="step">step</option><option value="time">time</option>
          </select>
        </label>
        <label class="field"><input type="checkbox" checked={logY} onChange={(event) => set({ log: event.currentTarget.checked ? "1" : null })} />log scale</label>
        {range === null ? null : <button type="button" onClick={() => setRange(null)}>Show all</button>}
        <span class="grow" />
        <button type="button" onClick={() => savePagePng(title)} disabled={shown === 0}>Save PNG</button>
        <button type="button" onClick={() => savePageCsv(title)} disabled={shown === 0} title="The displayed points">Save CSV</button>
      </div>
      {error === null ? null : <Note kind="bad" title="Cannot read the points">{error}</Note>}
      {shown === 0 ? <p class="empty">{names.length === 0 ? "No metrics were reported yet." : `None of ${plural(names.length, "metric")} matches.`}</p> : null}
      {groups.map(({ prefix, names: own }) => (
        <details key={prefix} class="group" open>
          <summary class="group-head"><h2>{prefix === "" ? (groups.length > 1 ? "general" : "metrics") : prefix}</h2><span class="count">{own.length}</span></summary>
          <div class={`grid ${shown <= 3 ? "grid-wide" : ""}`}>
            {own.map((name) => (
              <Cell key={name} name={name} runs={runs} coarse={coarse.points} fine={fine.points} loaded={coarse.loaded} onVisible={onVisible} x={x} logY={logY}
                smoothing={smoothing} range={range} whole={whole} marks={shownMarks} setRange={setRange} />
            ))}
          </div>
        </details>
      ))}
    </Fragment>
  );
}

interface CellProps {
  readonly name: string;
  readonly runs: readonly Shown[];
  readonly coarse: ReadonlyMap<string, Points>;
  readonly fine: ReadonlyMap<string, Points>;
  readonly loaded: boolean;
  readonly onVisible: (name: string, yes: boolean) => void;
  readonly x: "step" | "time";
  readonly logY: boolean;
  readonly smoothing: number;
  readonly range: Range | null;
  readonly whole: Range | null;
  readonly marks: NonNullable<PlotProps["marks"]>;
  readonly setRange: (range: Range | null) => void;
}

function Cell(props: CellProps) {
  const { name, runs, coarse, fine, onVisible } = props;
  const [ref, isSeen] = useVisible<HTMLDivElement>();
  useEffect(() => onVisible(name, isSeen), [name, isSeen]);
  useEffect(() => () => onVisible(name, false), [name]);
  const points = runs.map((run) => coarse.get(keyOf(run.id, name)));
  const finer = runs.map((run) => fine.get(keyOf(run.id, name)));
  const lines = useMemo(() => runs.flatMap((run, index): Line[] => {
    const whole = points[index];
    if (whole === undefined || (whole.x.length === 0 && runs.length > 1)) return [];
    const { x, y, low, high } = splicePoints(whole, finer[index]);
    return [{ name: run.name, color: run.color, dashed: run.dashed, x, y, low, high }];
  }), [...runs.flatMap(({ name: own, color, dashed }) => [own, color, dashed]), ...points, ...finer, runs.length]);
  return (
    <div ref={ref} class="cell">
      <Plot title={name} lines={lines} xLabel={props.x} xKind={props.x === "time" ? "seconds" : "number"} logY={props.logY}
        smoothing={props.smoothing} marks={props.marks} range={props.range} whole={props.whole} onRange={props.setRange}
        nothing={points.some((each) => each !== undefined) || props.loaded ? "No points yet" : "Loading …"} />
    </div>
  );
}

interface LoadedPoints {
  readonly x: "step" | "time";
  readonly points: ReadonlyMap<string, Points>;
  readonly error: string | null;
  readonly loaded: boolean;
}

const EACH_MS = 1000;

// Points of these metrics and runs, kept up to date with one request at a time. Growing points are fetched again at most
// once a second, missing ones at once. `leave` selects those that need not be fetched.
function usePoints(
  source: Source, runs: readonly Shown[], names: readonly string[], x: "step" | "time", range: Range | null, most: number,
  leave: (key: string) => boolean = () => false,
): LoadedPoints {
  const [state, setState] = useState<LoadedPoints>({ x, points: new Map(), error: null, loaded: false });
  const off = most === FINE && range === null;
  const what = JSON.stringify([x, range]);
  const have = useRef<{ what: string; last: Map<string, number> }>({ what: "", last: new Map() });
  const pace = useRef({ busy: false, again: false, next: 0, timer: 0 });
  const ask = useRef<() => void>(() => undefined);
  ask.current = () => {
    const now = performance.now();
    if (off) return;
    if (pace.current.busy) return void (pace.current.again = true);
    const isNew = have.current.what !== what;
    const known = isNew ? new Map<string, number>() : have.current.last;
    const isMissing = (run: Shown, key: string) => known.get(key) !== run.last && !leave(key);
    const missing = runs
      .map((run) => ({ run, some: names.filter((name) => isMissing(run, keyOf(run.id, name))) }))
      .filter(({ some }) => some.length > 0);
    if (missing.length === 0) return;
    const grows = missing.every(({ run, some }) => some.every((name) => known.has(keyOf(run.id, name))));
    if (grows && now < pace.current.next) {
      clearTimeout(pace.current.timer);
      pace.current.timer = window.setTimeout(() => ask.current(), pace.current.next - now);
      return;
    }
    pace.current.busy = true;
    const requests = missing.map(({ run, some }) => source.metrics(run.id, { names: some, x, range, points: most }));
    Promise.all(requests).then(
      (answers) => {
        have.current = { what, last: new Map(known) };
        for (const { run, some } of missing) for (const name of some) have.current.last.set(keyOf(run.id, name), run.last);
        setState((before) => {
          const points = new Map(isNew ? [] : before.points);
          answers.forEach((all, index) => all.forEach((each) => points.set(keyOf(missing[index]?.run.id ?? "", each.name), each)));
          return { x, points, error: null, loaded: true };
        });
      },
      (error: unknown) => setState((before) => ({ ...before, error: textOf(error), loaded: true })),
    ).finally(() => {
      pace.current.busy = false;
      pace.current.next = now + EACH_MS;
      if (!pace.current.again) return;
      pace.current.again = false;
      ask.current();
    });
  };
  useEffect(() => () => clearTimeout(pace.current.timer), []);
  const left = names.map((name) => runs.map((run) => (leave(keyOf(run.id, name)) ? "1" : "0")).join("")).join("");
  useEffect(() => {
    if (!off) return ask.current();
    have.current = { what: "", last: new Map() };
    setState((before) => (before.points.size === 0 ? before : { x, points: new Map(), error: null, loaded: false }));
  }, [source, what, names, off, left, ...runs.flatMap((run) => [run.id, run.last]), runs.length]);
  // Steps are not seconds: points fetched for another x are not shown.
  return useMemo(() => (state.x === x ? state : { x, points: new Map(), error: state.error, loaded: false }), [state, x]);
}
