// A search: its trials as parallel coordinates, parameter importance, curves, and a table.

import { Fragment } from "preact";
import { useEffect, useMemo, useState } from "preact/hooks";
import type { SearchDetail } from "../api";
import { Loading, Note, textOf, useNow } from "../parts";
import { Plot } from "../plot/Plot";
import type { Line } from "../plot/types";
import { one, toRun } from "../router";
import type { Source } from "../source";
import type { SearchProps } from "../tabs";
import { duration, number, plural, share } from "../words";
import { Head, Nothing, Pages, Part, StateSign, type Order } from "./pieces";
import { Parallel, tint } from "./Parallel";
import {
  curvesOf, differingKeys, flat, importanceOf, parallelOf, passes, rows, sorted,
  type Brushes, type Curves, type Importance, type Parallel as Data, type Row,
} from "./trials";

const AGAIN_MS = 2000;
const PAGE = 50;
const MOST_CURVES = 40;

export function Search({ source, summary, query, set }: SearchProps) {
  const metric = one(query, "metric");
  const mode = one(query, "mode");
  const { search, problem } = useSearch(source, summary.id, metric, mode);
  const [brushes, brush] = useState<Brushes>({});
  const [hovered, hover] = useState<string | null>(null);
  const [pinned, pin] = useState<string | null>(null);
  const all = useMemo(() => (search === null ? [] : rows(search)), [search]);
  const parallel = search === null ? null : parallelOf(search);
  const inside = useMemo(() => {
    if (parallel === null) return null;
    return new Set(parallel.lines.filter((line) => passes(line, parallel.axes, brushes)).map((line) => line.trial_id));
  }, [parallel, brushes]);
  const keys = useMemo(() => differingKeys(all.map((row) => flat(row.config))), [all]);
  if (search === null) return problem === null ? <Loading what="the search" /> : <Note kind="bad" title="Cannot show this search">{problem}</Note>;
  const isBrushed = Object.keys(brushes).length > 0;
  const shown = inside === null || !isBrushed ? all : all.filter((row) => inside.has(row.trial));
  const active = all.find((row) => row.trial === (hovered ?? pinned));
  const curves = curvesOf(search);
  const names = [...new Set([...(search.metric === null ? [] : [search.metric]), ...all.flatMap((row) => Object.keys(row.summary.metrics))])];
  return (
    <div class="view search-view">
      {problem === null ? null : <Note kind="warn" title="The data may be outdated">{problem}</Note>}
      <div class="tools">
        <label>Metric <select value={search.metric ?? ""} onChange={(event) => set({ metric: event.currentTarget.value })}>
          {names.map((name) => <option value={name}>{name}</option>)}
        </select></label>
        <label>Best is <select value={search.mode ?? "min"} onChange={(event) => set({ mode: event.currentTarget.value })}><option value="min">least</option><option value="max">greatest</option></select></label>
        <Counts all={all} />
        {isBrushed ? <button type="button" class="small-button" onClick={() => brush({})}>{shown.length} of {plural(all.length, "trial")}: show all</button> : null}
      </div>
      {all.length === 0 ? <Nothing>This search has no trials{source.fixed ? "" : " yet"}.</Nothing> : (
        <Fragment>
          {parallel === null || parallel.axes.length < 2 ? null : (
            <Part title="Parameters and result" aside={<span class="dim">drag along an axis to keep only trials that cross it there; click to clear</span>}>
              <Parallel data={parallel} brushes={brushes} brush={brush} hovered={hovered ?? pinned} hover={hover} pick={(trial) => pin(trial === pinned ? null : trial)} />
              <p class="trial-details" aria-live="polite">{active === undefined ? <span class="dim">the stronger the line, the better {search.metric ?? "its value"}</span> : <TrialDetails row={active} metric={search.metric} />}</p>
            </Part>
          )}
          <div class="sections">
            <ImportanceTable importance={importanceOf(search)} metric={search.metric} />
            {curves === null ? null : <AllCurves curves={curves} parallel={parallel} rows={all} inside={isBrushed ? inside : null} hovered={hovered ?? pinned} />}
          </div>
          <Trials all={shown} keys={keys} metric={search.metric} mode={search.mode} hovered={hovered ?? pinned} hover={hover} />
        </Fragment>
      )}
    </div>
  );
}

// Loads the search, and again when a trial changes, at most every AGAIN_MS.
function useSearch(source: Source, id: string, metric: string | null, mode: string | null): { search: SearchDetail | null; problem: string | null } {
  const [search, setSearch] = useState<SearchDetail | null>(null);
  const [problem, setProblem] = useState<string | null>(null);
  useEffect(() => {
    let wanted = true;
    let stale = false;
    let timer: ReturnType<typeof setTimeout> | null = null;
    const load = () => {
      stale = false;
      timer = setTimeout(() => { timer = null; if (stale && wanted) load(); }, AGAIN_MS);
      source.search(id, metric ?? undefined, mode ?? undefined).then(
        (value) => { if (wanted) { setSearch(value); setProblem(null); } },
        (error: unknown) => { if (wanted) setProblem(textOf(error)); },
      );
    };
    load();
    const end = source.follow({
      runs: (changed) => {
        if (!changed.some((run) => run.id === id || run.search === id)) return;
        if (timer === null) load();
        else stale = true;
      },
    });
    return () => { wanted = false; if (timer !== null) clearTimeout(timer); end(); };
  }, [source, id, metric, mode]);
  return { search, problem };
}

function Counts({ all }: { all: readonly Row[] }) {
  const counts = new Map<string, number>();
  for (const row of all) counts.set(row.summary.state, (counts.get(row.summary.state) ?? 0) + 1);
  return <span class="counts">{[...counts].map(([state, many]) => <StateSign key={state} state={state} word={`${many} ${state}`} />)}</span>;
}

function TrialDetails({ row, metric }: { row: Row; metric: string | null }) {
  const config = Object.entries(flat(row.config)).map(([key, value]) => `${key} = ${number(value)}`).join(", ");
  return <span><a href={toRun(row.id)}>{row.summary.name}</a>{row.isBest ? <span class="tag tag-good">best</span> : null} {metric ?? "value"} {number(row.value)} <span class="dim">{config}</span></span>;
}

function ImportanceTable({ importance, metric }: { importance: Importance | null; metric: string | null }) {
  if (importance === null) return null;
  const most = Math.max(1e-12, ...importance.parameters.map((each) => each.importance));
  return (
    <Part title="Parameter importance" aside={<span class="dim">for {metric ?? "the result"}</span>}>
      {importance.note === null ? null : <Nothing>{importance.note}</Nothing>}
      <table class="importance"><tbody>{importance.note !== null ? null : importance.parameters.slice(0, 20).map((each) => (
        <tr data-parameter={each.name}>
          <th scope="row" title={each.name}>{each.name}</th>
          <td class="importance-bar"><span style={{ width: `${(each.importance / most) * 100}%` }} /></td>
          <td class="num">{share(each.importance)}</td>
        </tr>
      ))}</tbody></table>
    </Part>
  );
}

function AllCurves({ curves, parallel, rows: all, inside, hovered }: {
  curves: Curves; parallel: Data | null; rows: readonly Row[]; inside: ReadonlySet<string> | null; hovered: string | null;
}) {
  const names = useMemo(() => new Map(all.map((row) => [row.trial, row.summary.name])), [all]);
  const shownCurves = useMemo(() => {
    const tints = new Map((parallel?.lines ?? []).map((line) => [line.trial_id, tint(line, curves.mode)]));
    const sign = curves.mode === "min" ? 1 : -1;
    const some = curves.lines.filter((line) => line.points.length > 0 && (inside === null || inside.has(line.trial_id)));
    const best = [...some].sort((a, b) => sign * ((a.value ?? sign * Infinity) - (b.value ?? sign * Infinity)) || 0);
    const bestLines = best.slice(0, MOST_CURVES);
    const lines = bestLines.reverse().map((line): Line => ({
      name: names.get(line.trial_id) ?? line.trial_id,
      color: line.trial_id === hovered ? "var(--ink)" : line.trial_id === curves.best ? "var(--good)" : tints.get(line.trial_id) ?? "var(--t4)",
      x: line.points.map(([x]) => x),
      y: line.points.map(([, y]) => y),
    }));
    return { lines, many: some.length };
  }, [curves, parallel, inside, hovered, names]);
  return (
    <Part title="Curves" aside={<span class="dim">{shownCurves.many > shownCurves.lines.length ? `the best ${shownCurves.lines.length} of ${shownCurves.many} trials` : plural(shownCurves.many, "trial")}</span>}>
      <Plot title={curves.metric} lines={shownCurves.lines} xLabel="iteration" height={260} logY={curves.scale.log} />
    </Part>
  );
}

function Trials({ all, keys, metric, mode, hovered, hover }: {
  all: readonly Row[]; keys: readonly string[]; metric: string | null; mode: string | null; hovered: string | null; hover: (trial: string | null) => void;
}) {
  const [chosenOrder, sort] = useState<Order<string> | null>(null);
  const order = chosenOrder ?? { key: " value", down: mode === "max" };
  const [page, setPage] = useState(0);
  const now = useNow(5);
  const flats = useMemo(() => new Map(all.map((row) => [row.id, flat(row.config)])), [all]);
  const inOrder = useMemo(() => sorted(all, order.key, order.down), [all, order.key, order.down]);
  const pages = Math.ceil(all.length / PAGE);
  const at = Math.min(page, Math.max(0, pages - 1));
  const head = { order, sort: (next: Order<string>) => { sort(next); setPage(0); } };
  return (
    <Part title="Trials" aside={<span class="dim">{plural(all.length, "trial")}</span>}>
      <div class="table-frame" tabindex={0} role="region" aria-label="Table of trials" onPointerLeave={() => hover(null)}>
        <table class="table trials">
          <thead><tr>
            <Head by=" trial" {...head}>Trial</Head><Head by=" state" {...head}>State</Head>
            <Head by=" value" num downFirst={mode === "max"} {...head}>{metric ?? "value"}</Head>
            <Head by=" reports" num downFirst {...head}>Reports</Head><Head by=" time" num downFirst {...head}>Time</Head>
            {keys.map((key) => <Head key={key} by={key} num={all.some((row) => typeof flats.get(row.id)?.[key] === "number")} {...head}>{key}</Head>)}
          </tr></thead>
          <tbody>{inOrder.slice(at * PAGE, (at + 1) * PAGE).map((row) => (
            <tr key={row.id} tabindex={0} data-item data-trial={row.id} class={row.trial === hovered ? "hovered" : ""} onPointerEnter={() => hover(row.trial)} onFocus={() => hover(row.trial)}>
              <th scope="row" class="nowrap"><a href={toRun(row.id)}>{row.summary.name}</a>{row.isBest ? <span class="tag tag-good">best</span> : null}</th>
              <td><StateSign state={row.summary.state} />{row.summary.failure === null ? null : <div class="cause short" title={row.summary.failure}>{row.summary.failure.split("\n")[0]}</div>}</td>
              <td class="num">{number(row.value)}</td><td class="num">{number(row.summary.num_reports)}</td>
              <td class="num nowrap">{duration((row.summary.ended_at ?? (row.summary.state === "running" ? now : row.summary.updated_at)) - row.summary.began_at)}</td>
              {keys.map((key) => { const value = flats.get(row.id)?.[key]; return <td key={key} class={typeof value === "number" ? "num" : "config-cell"}>{value === undefined ? "–" : number(value)}</td>; })}
            </tr>
          ))}</tbody>
        </table>
      </div>
      <Pages page={at} pages={pages} set={setPage} what="trials" />
    </Part>
  );
}
