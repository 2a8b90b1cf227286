// One run: its state and its tabs. A search has its own page instead.

import { Fragment } from "preact";
import { useEffect, useState } from "preact/hooks";
import type { AboutAnswer, RunSnapshot, Summary } from "./api";
import { Badge, Bar, ENDED, Guarded, Loading, Note, textOf, useNow } from "./parts";
import { go, toCompare, toRun, toRuns } from "./router";
import type { Patch, Route } from "./router";
import type { Source } from "./source";
import { places, runTabs } from "./tabs";
import { ago, duration, number, plural, rate, share, when } from "./words";

export interface RunPageProps {
  readonly source: Source;
  readonly route: Route & { page: "run" };
  readonly runs: readonly Summary[];
  readonly about: AboutAnswer | null;
  readonly set: (patch: Patch) => void;
}

export function RunPage({ source, route, runs, about, set }: RunPageProps) {
  const listed = runs.find((run) => run.id === route.id);
  if (listed?.kind === "search" && places.search !== null) {
    return (
      <Fragment>
        <Head source={source} summary={listed} detail={null} control={about?.control ?? false} />
        <Guarded what="This search"><places.search source={source} summary={listed} query={route.query} set={set} /></Guarded>
      </Fragment>
    );
  }
  return <OneRun source={source} route={route} listed={listed} about={about} set={set} />;
}

function OneRun({ source, route, listed, about, set }: Omit<RunPageProps, "runs"> & { listed: Summary | undefined }) {
  const { detail, last, error } = useDetail(source, route.id);
  const summary = detail?.summary ?? listed;
  if (summary === undefined || detail === null) {
    if (error === null) return <Loading what="the run" />;
    return <Note kind="bad" title="Cannot show this run"><p>{error}</p><a href={toRuns()}>All runs</a></Note>;
  }
  const tabs = runTabs.filter((tab) => tab.shown?.(detail) ?? true);
  const tab = tabs.find((each) => each.id === route.tab) ?? tabs[0];
  return (
    <Fragment>
      <Head source={source} summary={summary} detail={detail} control={about?.control ?? false} />
      <nav class="tabs" role="tablist" aria-label="What to see of this run">
        {tabs.map((each) => {
          const count = each.count?.(detail) ?? null;
          return (
            <a key={each.id} id={`tab-${each.id}`} role="tab" class="tab" href={toRun(route.id, each.id)}
              aria-selected={each === tab ? "true" : "false"} aria-controls="tab-panel">
              {each.title}{count === null ? null : <span class="count">{number(count)}</span>}
            </a>
          );
        })}
      </nav>
      {tab === undefined ? null : (
        <section id="tab-panel" class="panel" role="tabpanel" aria-labelledby={`tab-${tab.id}`}>
          <Guarded key={tab.id} what={tab.title}>
            <tab.view source={source} detail={detail} last={last} control={about?.control ?? false} query={route.query} set={set} />
          </Guarded>
        </section>
      )}
    </Fragment>
  );
}

function useDetail(source: Source, id: string): { detail: RunSnapshot | null; last: number; error: string | null } {
  const [detail, setDetail] = useState<RunSnapshot | null>(null);
  const [last, setLast] = useState(0);
  const [error, setError] = useState<string | null>(null);
  useEffect(() => {
    let wanted = true;
    const take = (detail: RunSnapshot) => {
      setDetail(detail);
      setError(null);
      setLast((before) => before || detail.summary.num_reports);
    };
    source.run(id).then((detail) => wanted && take(detail), (failed: unknown) => wanted && setError(textOf(failed)));
    const end = source.follow({ run: take, points: setLast }, id);
    return () => (wanted = false, end());
  }, [source, id]);
  return { detail, last, error };
}

function Head({ source, summary, detail, control }: {
  source: Source; summary: Summary; detail: RunSnapshot | null; control: boolean;
}) {
  useEffect(() => {
    document.title = `${summary.name} · ${summary.state} · Paceline`;
    return () => void (document.title = "Paceline");
  }, [summary.name, summary.state]);
  const csv = source.csvUrl(summary.id);
  const report = source.reportUrl(summary.id);
  return (
    <header class="head">
      {source.fixed ? null : (
        <nav class="crumbs dim" aria-label="Where this is">
          <a href={toRuns()}>Runs</a>
          {summary.search === null ? null : <Fragment> / <a href={toRun(summary.search)}>{summary.search}</a></Fragment>}
        </nav>
      )}
      <div class="row head-row">
        <h1 class="head-name" title={summary.path}>{summary.name}</h1>
        <Badge state={summary.state} />
        <span class="grow" />
        {source.fixed || summary.kind === "search" ? null : <button type="button" onClick={() => go(toCompare([summary.id]))}>Compare</button>}
        {csv === null || summary.kind === "search" ? null : <a class="button" href={csv} download>CSV</a>}
        {report === null ? null : <a class="button" href={report} download>Report</a>}
        {control && places.control !== null && !ENDED.has(summary.state) ? <places.control source={source} summary={summary} /> : null}
      </div>
      <Facts summary={summary} detail={detail} fixed={source.fixed} />
      {source.cut.length === 0 ? null : <p class="dim small">This report holds a part only: {source.cut.join("; ")}.</p>}
      {summary.hang === null ? null : <Note kind="warn" title="Hanging ranks"><pre class="message">{summary.hang}</pre></Note>}
      {summary.failure === null ? null : (
        <Note kind="bad" title={summary.state === "failed" ? "It failed" : "A failure, from which it went on"}>
          <pre class="message">{summary.failure}</pre>
        </Note>
      )}
    </header>
  );
}

function Facts({ summary, detail, fixed }: { summary: Summary; detail: RunSnapshot | null; fixed: boolean }) {
  const now = useNow(1);
  const isOver = ENDED.has(summary.state);
  const latest = detail?.checkpoints.find((each) => each.is_latest) ?? detail?.checkpoints.at(-1);
  const until = summary.ended_at ?? (isOver || fixed ? summary.updated_at : now);
  const facts: [string, string, string?][] = [];
  if (summary.kind === "search") facts.push(["trials ended", number(summary.num_reports)]);
  else facts.push(["step", number(summary.num_reports)]);
  if (!isOver) {
    if (summary.steps_per_s !== null) facts.push(["rate", rate(summary.steps_per_s, "steps")]);
    if (summary.epochs_per_s !== null) facts.push(["epochs", rate(summary.epochs_per_s, "epochs")]);
    if (summary.left_s !== null) facts.push(["time left", duration(summary.left_s)]);
  }
  facts.push([isOver ? "took" : "for", duration(Math.max(0, until - summary.began_at)), `since ${when(summary.began_at, now)}`]);
  if (summary.num_workers > 0) facts.push(["workers", number(summary.num_workers)]);
  if (summary.attempt > 0) facts.push(["attempt", number(summary.attempt), plural(summary.num_failures, "failure")]);
  if (latest !== undefined) facts.push(["last checkpoint", fixed ? when(latest.at) : ago(latest.at, now), latest.name]);
  if (summary.best !== null) {
    facts.push([`best ${summary.best.metric}`, number(summary.best.value), `${summary.best.mode} at step ${number(summary.best.step)}`]);
  }
  return (
    <Fragment>
      {summary.progress === null ? null : (
        <div class="row head-progress"><Bar part={summary.progress} label="progress of the run" /><span class="mono">{share(summary.progress)}</span></div>
      )}
      <dl class="facts">
        {facts.map(([name, value, more]) => <div key={name} title={more}><dt>{name}</dt><dd>{value}</dd></div>)}
      </dl>
    </Fragment>
  );
}
