// Compares several runs in the same plots, and shows the differences of two.

import { Fragment } from "preact";
import { useMemo } from "preact/hooks";
import type { Summary } from "./api";
import { Charts } from "./charts";
import { Badge, Empty, Guarded, Note, useLoaded } from "./parts";
import { lineColor, NUM_COLORS } from "./plot/colors";
import type { Patch, Query } from "./router";
import { many, one, toRun, toRuns } from "./router";
import type { Source } from "./source";
import { places } from "./tabs";
import { number } from "./words";

export interface CompareProps {
  readonly source: Source;
  readonly runs: readonly Summary[];
  readonly query: Query;
  readonly set: (patch: Patch) => void;
}

export function Compare({ source, runs, query, set }: CompareProps) {
  const ids = [...new Set(many(query, "run"))];
  const found = ids.map((id) => runs.find((run) => run.id === id));
  const unknown = ids.filter((_, index) => found[index] === undefined);
  const chosen = found.filter((run): run is Summary => run !== undefined);
  const key = chosen.map((run) => run.id).join("\n");
  const shown = useMemo(() => labelled(chosen).map((name, index) => ({
    id: chosen[index]?.id ?? "", name, color: lineColor(index), dashed: index >= NUM_COLORS, last: chosen[index]?.num_reports ?? 0,
  })), [key, chosen.map((run) => run.num_reports).join()]);
  // Names of metrics come with the first reports, so they are fetched again then.
  const begun = chosen.map((run) => (run.num_reports > 0 ? 1 : 0)).join();
  const details = useLoaded(() => Promise.all(chosen.map((run) => source.run(run.id))), [source, key, begun]);
  const names = useMemo(() => [...new Set((details.value ?? []).flatMap((detail) => detail.metric_names))].sort(), [details.value]);
  const others = runs.filter((run) => run.kind !== "search" && !ids.includes(run.id));
  return (
    <Fragment>
      <header class="head">
        <nav class="crumbs dim" aria-label="Where this is"><a href={toRuns({ pick: ids })}>Runs</a></nav>
        <div class="row head-row"><h1>Compare {chosen.length < 2 ? "" : `${chosen.length} runs`}</h1></div>
        <div class="row compared" role="list" aria-label="Compared runs">
          {chosen.map((run, index) => (
            <span key={run.id} class="chip compared-run" role="listitem">
              <span class={`swatch ${shown[index]?.dashed ? "is-dashed" : ""}`} style={{ color: lineColor(index) }} />
              <a href={toRun(run.id)} title={run.path} class="cut">{shown[index]?.name}</a>
              <Badge state={run.state} />
              <button type="button" class="quiet" aria-label={`Leave out ${run.name}`} onClick={() => set({ run: ids.filter((id) => id !== run.id) })}>✕</button>
            </span>
          ))}
          {others.length === 0 ? null : (
            <select aria-label="Add a run" value="" onChange={(event) => event.currentTarget.value !== "" && set({ run: [...ids, event.currentTarget.value] })}>
              <option value="">Add a run …</option>
              {others.map((run) => <option key={run.id} value={run.id}>{run.id === run.name ? run.name : `${run.name}  (${run.id})`}</option>)}
            </select>
          )}
        </div>
      </header>
      {unknown.length === 0 ? null : <Note kind="warn" title="Not found">{unknown.join(", ")}</Note>}
      {details.error === null ? null : <Note kind="bad" title="Cannot read a run">{details.error}</Note>}
      {chosen.length === 0 ? <Empty title="Nothing to compare"><p>Pick runs in <a href={toRuns()}>the list</a>.</p></Empty> : (
        <Charts source={source} title={`compared-${chosen.map((run) => run.name).join("-")}`} runs={shown} names={names} query={query} set={set} />
      )}
      {chosen.length < 2 ? null : <Differences source={source} chosen={chosen} query={query} set={set} />}
    </Fragment>
  );
}

function Differences({ source, chosen, query, set }: { source: Source; chosen: readonly Summary[]; query: Query; set: (patch: Patch) => void }) {
  const pick = (key: string, index: number) => chosen.find((run) => run.id === one(query, key)) ?? chosen[index];
  const [a, b] = [pick("a", 0), pick("b", 1)];
  if (a === undefined || b === undefined) return null;
  const choice = (key: string, value: Summary) => (
    <select aria-label={`Run ${key}`} value={value.id} onChange={(event) => set({ [key]: event.currentTarget.value })}>
      {chosen.map((run) => <option key={run.id} value={run.id}>{run.name}</option>)}
    </select>
  );
  return (
    <section class="stack differences">
      <div class="row"><h2>What differs</h2>{chosen.length > 2 ? <Fragment>{choice("a", a)}<span class="dim">and</span>{choice("b", b)}</Fragment> : null}</div>
      {places.diff === null ? <Lasts a={a} b={b} /> : (
        <Guarded key={`${a.id} ${b.id}`} what="The difference"><places.diff source={source} a={a.id} b={b.id} /></Guarded>
      )}
    </section>
  );
}

function Lasts({ a, b }: { a: Summary; b: Summary }) {
  const names = [...new Set([...Object.keys(a.metrics), ...Object.keys(b.metrics)])].sort();
  return (
    <div class="card scroll">
      <table class="table">
        <thead><tr><th>last</th><th class="num">{a.name}</th><th class="num">{b.name}</th></tr></thead>
        <tbody>{names.map((name) => <tr key={name}><td>{name}</td><td class="num">{number(a.metrics[name])}</td><td class="num">{number(b.metrics[name])}</td></tr>)}</tbody>
      </table>
    </div>
  );
}

// Distinct labels of the runs: equal names get their ids.
export function labelled(runs: readonly { readonly id: string; readonly name: string }[]): string[] {
  return runs.map((run) => (runs.some((other) => other !== run && other.name === run.name) ? run.id : run.name));
}
