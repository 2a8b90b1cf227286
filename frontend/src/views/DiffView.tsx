// What differs between two runs: configuration, code, metrics, where they ran.

import { useMemo } from "preact/hooks";
import type { ValueChange, CodeChange, Diff } from "../api";
import { Loading, Note, useLoaded } from "../parts";
import { toRun } from "../router";
import type { DiffProps } from "../tabs";
import { number, plural, share } from "../words";
import { compareMetrics, diffLines } from "./differences";
import { Copy, Fold, Nothing, Part, StateSign } from "./pieces";
import { formatValue, type Leaf } from "./trees";

const OPEN_LINES = 400;

export function Difference({ source, a, b }: DiffProps) {
  const { value, error } = useLoaded(() => source.diff(a, b), [source, a, b]);
  if (error !== null) return <Note kind="bad" title="Cannot compare these runs">{error}</Note>;
  if (value === null) return <Loading what="what differs" />;
  return <DiffView diff={value} />;
}

export function DiffView({ diff }: { diff: Diff }) {
  const changed = diff.config.length + diff.scaling.length + diff.environment.length + diff.code.length;
  return (
    <div class="view diff">
      <div class="diff-sides">
        <span class="side-a">A</span><a href={toRun(diff.a.id)}>{diff.a.name}</a><StateSign state={diff.a.state} />
        <span class="side-b">B</span><a href={toRun(diff.b.id)}>{diff.b.name}</a><StateSign state={diff.b.state} />
      </div>
      {changed === 0 ? <Nothing>Configuration, scaling, environment and code are identical.</Nothing> : null}
      <Keys title="Configuration" changed={diff.config} />
      <Keys title="Scaling" changed={diff.scaling} />
      {diff.code.length === 0 ? null : (
        <Part title="Code" aside={<span class="dim">{plural(diff.code.length, "file differs", "files differ")}</span>}>
          {diff.code.map((change) => <Code key={change.file} change={change} />)}
        </Part>
      )}
      <Metrics changed={diff.metrics} />
      <Keys title="Environment" changed={diff.environment} />
    </div>
  );
}

function Keys({ title, changed }: { title: string; changed: readonly ValueChange[] }) {
  if (changed.length === 0) return null;
  return (
    <Part title={title} aside={<span class="dim">{plural(changed.length, "key differs", "keys differ")}</span>}>
      <div class="table-frame" tabindex={0} role="region" aria-label={`What differs: ${title}`}>
        <table class="table diff-table">
          <thead><tr><th scope="col">Key</th><th scope="col"><span class="side-a">A</span></th><th scope="col"><span class="side-b">B</span></th></tr></thead>
          <tbody>{changed.map((each) => (
            <tr><th scope="row" class="mono">{each.key}</th><td class="mono was-a">{value(each.a)}</td><td class="mono was-b">{value(each.b)}</td></tr>
          ))}</tbody>
        </table>
      </div>
    </Part>
  );
}

function value(each: unknown): string {
  if (each === null || each === undefined) return "–";
  return typeof each === "object" ? JSON.stringify(each) : formatValue(each as Leaf);
}

function Metrics({ changed }: { changed: readonly ValueChange[] }) {
  const all = useMemo(() => compareMetrics(changed), [changed]);
  if (all.length === 0) return null;
  return (
    <Part title="Metrics" aside={<span class="dim">reported last</span>}>
      <div class="table-frame" tabindex={0} role="region" aria-label="Metrics side by side">
        <table class="table diff-table">
          <thead><tr><th scope="col">Metric</th><th scope="col" class="num"><span class="side-a">A</span></th><th scope="col" class="num"><span class="side-b">B</span></th><th scope="col" class="num">B − A</th></tr></thead>
          <tbody>{all.map((each) => (
            <tr class={each.differs ? "" : "faded"}>
              <th scope="row">{each.key}</th><td class="num">{number(each.a)}</td><td class="num">{number(each.b)}</td>
              <td class="num">{!each.differs ? "equal" : each.change === null ? "–" : `${each.change > 0 ? "+" : ""}${number(each.change)}`}{each.share === null || !each.differs ? null : <span class="dim"> {each.share > 0 ? "+" : ""}{share(each.share)}</span>}</td>
            </tr>
          ))}</tbody>
        </table>
      </div>
    </Part>
  );
}

const SIGNS = { added: "added", removed: "removed" } as const;

function Code({ change }: { change: CodeChange }) {
  const lines = useMemo(() => diffLines(change.diff), [change]);
  const added = lines.filter((line) => line.kind === "added").length;
  const removed = lines.filter((line) => line.kind === "removed").length;
  return (
    <Fold kind="source" open={lines.length <= OPEN_LINES} title={<span class="mono">{change.file} <span class="plus">+{added}</span> <span class="minus">−{removed}</span></span>}>{() => (
      <div class="text-frame"><Copy text={change.diff} what={`the diff of ${change.file}`} />
        <div class="code-diff" role="region" tabindex={0} aria-label={`Diff of ${change.file}`}>{lines.map((line) => (
          <div class={`diff-line is-${line.kind}`}>
            <span class="diff-at" aria-hidden="true">{line.a ?? ""}</span><span class="diff-at" aria-hidden="true">{line.b ?? ""}</span>
            <span class="diff-text">{line.kind === "added" || line.kind === "removed" ? <span class="away">{SIGNS[line.kind]}: </span> : null}{line.text === "" ? " " : line.text}</span>
          </div>
        ))}</div></div>
    )}</Fold>
  );
}
