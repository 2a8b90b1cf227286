// The list of all runs: found, sorted, unfolded, and picked to be compareMetrics.

import { Fragment } from "preact";
import { useEffect, useMemo, useRef, useState } from "preact/hooks";
import type { Summary } from "./api";
import { countStates, metricNames, listRows } from "./listing";
import type { Row } from "./listing";
import { Badge, Bar, ENDED, Empty, useNow } from "./parts";
import { go, many, one, toCompare, toRun } from "./router";
import type { Patch, Query } from "./router";
import type { Source } from "./source";
import { ago, duration, number, plural, share, when } from "./words";

export interface RunsProps {
  readonly source: Source;
  readonly runs: readonly Summary[];
  readonly query: Query;
  readonly set: (patch: Patch) => void;
  readonly root: string;
}

const AT_ONCE = 150;

export function Runs({ runs, query, set, root }: RunsProps) {
  const now = useNow(5);
  const text = one(query, "q") ?? "";
  const states = many(query, "state");
  const sort = one(query, "sort") ?? "-began";
  const open = many(query, "open");
  const picked = many(query, "pick");
  const names = useMemo(() => metricNames(runs), [runs]);
  const metric = one(query, "metric") ?? (names.includes("loss") ? "loss" : names[0] ?? null);
  const [column, down] = sort.startsWith("-") ? [sort.slice(1), true] : [sort, false];
  const found = useMemo(() => listRows(runs, { text, states, sort: column, down, open }), [runs, query]);
  const [end, more] = useMore(found.length);
  if (runs.length === 0) return <NoRuns root={root} />;
  const toggled = (list: readonly string[], value: string) => (list.includes(value) ? list.filter((each) => each !== value) : [...list, value]);
  const columns = columnsOf(metric);
  return (
    <div class="runs">
      <div class="row tools">
        <input type="search" class="search" data-search placeholder="Search runs  ( / )" aria-label="Search runs" value={text}
          onInput={(event) => set({ q: event.currentTarget.value })} />
        <div class="row chips" role="group" aria-label="States">
          {countStates(runs).map(([state, count]) => (
            <button key={state} type="button" class="chip" aria-pressed={states.includes(state) ? "true" : "false"}
              onClick={() => set({ state: toggled(states, state) })}>{state}<span class="count">{count}</span></button>
          ))}
        </div>
        <span class="grow" />
        {names.length === 0 ? null : (
          <label class="field">metric
            <select value={metric ?? ""} onChange={(event) => set({ metric: event.currentTarget.value })}>
              {names.map((name) => <option key={name} value={name}>{name}</option>)}
            </select>
          </label>
        )}
        <label class="field only-narrow">sort
          <select value={sort} onChange={(event) => set({ sort: event.currentTarget.value })}>
            {columns.flatMap(({ id, title }) => [
              <option key={`-${id}`} value={`-${id}`}>{title} ↓</option>, <option key={id} value={id}>{title} ↑</option>,
            ])}
          </select>
        </label>
      </div>
      <div class="card runs-card">
        <table class="table runs-table">
          <thead>
            <tr>
              <th class="runs-pick"><span class="away">Picked</span></th>
              {columns.map(({ id, title, isNumber }) => (
                <th key={id} class={`col-${id.split(":")[0]} ${isNumber ? "num" : ""}`} aria-sort={column !== id ? "none" : down ? "descending" : "ascending"}>
                  <button type="button" class="sorter" onClick={() => set({ sort: column === id && down ? id : column === id || !isNumber ? (column === id ? `-${id}` : id) : `-${id}` })}>
                    {title}<span aria-hidden="true" class="arrow">{column === id ? (down ? "↓" : "↑") : ""}</span>
                  </button>
                </th>
              ))}
            </tr>
          </thead>
          <tbody>
            {found.slice(0, end).map((row) => (
              <Line key={row.run.id} row={row} metric={metric} now={now} isPicked={picked.includes(row.run.id)}
                pick={() => set({ pick: toggled(picked, row.run.id) })} unfold={() => set({ open: toggled(open, row.run.id) })} />
            ))}
          </tbody>
        </table>
        {found.length === 0 ? <p class="empty">No run matches. <button type="button" onClick={() => set({ q: null, state: null })}>Show all {runs.length}</button></p> : null}
        {end < found.length ? <p ref={more} class="loading">{plural(found.length - end, "more run")} …</p> : null}
      </div>
      {picked.length === 0 ? null : (
        <div class="picked card row" role="region" aria-label="Picked runs">
          <span>{plural(picked.length, "run")} picked</span>
          <span class="grow" />
          <button type="button" onClick={() => set({ pick: null })}>Clear</button>
          <button type="button" class="main" onClick={() => go(toCompare(picked))}>Compare</button>
        </div>
      )}
    </div>
  );
}

interface Column { readonly id: string; readonly title: string; readonly isNumber: boolean }

function columnsOf(metric: string | null): Column[] {
  return [
    { id: "name", title: "Run", isNumber: false },
    { id: "state", title: "State", isNumber: false },
    { id: "progress", title: "Progress", isNumber: true },
    { id: "step", title: "Step", isNumber: true },
    ...(metric === null ? [] : [{ id: `metric:${metric}`, title: metric, isNumber: true }]),
    { id: "best", title: "Best", isNumber: true },
    { id: "workers", title: "Workers", isNumber: true },
    { id: "failures", title: "Failures", isNumber: true },
    { id: "took", title: "Took", isNumber: true },
    { id: "began", title: "Began", isNumber: true },
  ];
}

interface LineProps {
  readonly row: Row;
  readonly metric: string | null;
  readonly now: number;
  readonly isPicked: boolean;
  readonly pick: () => void;
  readonly unfold: () => void;
}

function Line({ row, metric, now, isPicked, pick, unfold }: LineProps) {
  const { run } = row;
  const began = ago(run.began_at, now);
  const took = duration(Math.max(0, (run.ended_at ?? (ENDED.has(run.state) ? run.updated_at : now)) - run.began_at));
  const acts = useRef({ pick, unfold });
  acts.current = { pick, unfold };
  // The same row is not compareMetrics again, however many there are.
  return useMemo(() => (
    <tr data-item tabIndex={0} class={`depth-${row.depth} ${isPicked ? "is-picked" : ""}`} aria-label={`${run.name}, ${run.state}`}
      onClick={(event) => {
        if (!(event.target instanceof Element) || event.target.closest("a, button, input, label") !== null || String(getSelection() ?? "") !== "") return;
        go(toRun(run.id));
      }}>
      <td class="runs-pick">
        {run.kind === "search" ? null : (
          <input type="checkbox" checked={isPicked} aria-label={`Pick ${run.name} to compare`} onChange={() => acts.current.pick()} />
        )}
      </td>
      <td class="col-name">
        <span class="runs-name">
          {row.trials > 0 ? (
            <button type="button" class="quiet unfold" aria-expanded={row.open ? "true" : "false"} aria-label={`Trials of ${run.name}`}
              onClick={() => acts.current.unfold()}>{row.open ? "▾" : "▸"}</button>
          ) : null}
          <a data-open href={toRun(run.id)} title={run.path} class="cut">{run.name}</a>
          {row.trials > 0 ? <span class="count">{plural(row.trials, "trial")}</span> : null}
        </span>
        {run.id === run.name || row.depth > 0 ? null : <span class="dim runs-id cut">{run.id}</span>}
        {run.hang === null ? null : <span class="runs-message warn cut" title={run.hang}>{run.hang}</span>}
        {run.failure === null || run.state !== "failed" ? null : <span class="runs-message bad cut" title={run.failure}>{firstLine(run.failure)}</span>}
      </td>
      <td class="col-state"><Badge state={run.state} /></td>
      <td class="col-progress num" data-title="progress">{run.progress === null ? "" : (
        <span class="runs-progress"><Bar part={run.progress} label={`progress of ${run.name}`} /><span title={run.left_s === null ? undefined : `${duration(run.left_s)} left`}>{share(run.progress)}</span></span>
      )}</td>
      <td class="col-step num" data-title={run.kind === "search" ? "ended" : "step"}>{number(run.num_reports)}</td>
      {metric === null ? null : <td class="col-metric num" data-title={metric}>{metric in run.metrics ? number(run.metrics[metric]) : ""}</td>}
      <td class="col-best num" data-title="best">{run.best === null ? "" : <span title={`${run.best.metric}, ${run.best.mode}, at step ${run.best.step}`}>{number(run.best.value)}</span>}</td>
      <td class="col-workers num" data-title="workers">{run.num_workers === 0 ? "" : number(run.num_workers)}</td>
      <td class="col-failures num" data-title="failures">{run.num_failures === 0 ? "" : <span class="bad">{number(run.num_failures)}</span>}</td>
      <td class="col-took num" data-title="took">{took}</td>
      <td class="col-began num dim" data-title="began"><span title={when(run.began_at)}>{began}</span></td>
    </tr>
  ), [run, row.depth, row.trials, row.open, metric, isPicked, began, took]);
}

function firstLine(text: string): string {
  return text.split("\n", 1)[0] ?? "";
}

// How many rows are shown: more as one comes to their end.
function useMore(count: number): [number, { current: HTMLParagraphElement | null }] {
  const [end, setEnd] = useState(AT_ONCE);
  const ref = useRef<HTMLParagraphElement>(null);
  useEffect(() => {
    if (ref.current === null) return;
    const watch = new IntersectionObserver((seen) => seen.some((each) => each.isIntersecting) && setEnd((before) => before + AT_ONCE), { rootMargin: "400px" });
    watch.observe(ref.current);
    return () => watch.disconnect();
  }, [end < count, end]);
  return [end, ref];
}

function NoRuns({ root }: { root: string }) {
  return (
    <Empty title="No runs yet">
      <p>Nothing under <span class="mono">{root}</span> is a run. A run shows up here as soon as it begins:</p>
      <pre>{`import paceline

def train(config):
    for step in range(100):
        paceline.train.report({"loss": 1 / (step + 1)})

trainer = paceline.train.DataParallelTrainer(
    train, run_config=paceline.train.RunConfig(storage_path=${JSON.stringify(root || "runs")}))
trainer.fit()`}</pre>
      <Fragment><p>Runs elsewhere: <span class="mono">paceline dashboard PATH</span></p></Fragment>
    </Empty>
  );
}
