// The ranks of an attempt in a table, worst first, and their usage over time.

import { useEffect, useMemo, useState } from "preact/hooks";
import type { Attempt, ShownGpu, UsageSeries } from "../api";
import { ENDED, Note, textOf } from "../parts";
import { Plot } from "../plot/Plot";
import type { ViewProps } from "../tabs";
import { grouped, number, plural, share, size } from "../words";
import { Head, Nothing, Pages, Part, StateSign, type Order } from "./pieces";
import {
  countStates, hasMeasure, MOST_LINES, sortWorkers, parseRanks, describeWorkers, usageLines,
  type Measure, type WorkerRow, type RankKey, type WorkerState,
} from "./ranks";

const PAGE = 25;
const MEASURES: readonly { measure: Measure; title: string; kind: "number" | "bytes" | "share"; shows: readonly [number, number] }[] = [
  { measure: "cpu", title: "CPU (cores in use)", kind: "number", shows: [0, 0.5] },
  { measure: "rss_bytes", title: "Memory", kind: "bytes", shows: [0, 1] },
  { measure: "gpu_used_bytes", title: "GPU memory", kind: "bytes", shows: [0, 1] },
  { measure: "gpu_busy", title: "GPU busy", kind: "share", shows: [0, 1] },
];

export function Workers({ detail, source, query, set }: ViewProps) {
  const last = detail.attempts[detail.attempts.length - 1];
  const requested = Number(query["attempt"]?.[0] ?? NaN);
  const attempt = detail.attempts.find((each) => each.number === requested) ?? last;
  if (attempt === undefined) return <Nothing>No workers yet: no attempt has started.</Nothing>;
  return (
    <div class="view workers">
      {detail.attempts.length > 1 ? (
        <div class="tools">
          <label>Attempt <select value={String(attempt.number)} onChange={(event) => set({ attempt: event.currentTarget.value === String(last?.number) ? null : event.currentTarget.value })}>
            {detail.attempts.map((each) => <option value={String(each.number)}>{each.number}{each.ending === "" ? "" : `: ${each.ending}`}</option>)}
          </select></label>
        </div>
      ) : null}
      <Ranks key={`table ${attempt.number}`} attempt={attempt} picked={query["rank"]?.[0] ?? ""} pick={(text) => set({ rank: text === "" ? null : text })} />
      <Usage key={`use ${attempt.number}`} detail={detail} source={source} attempt={attempt} picked={query["rank"]?.[0] ?? ""} pick={(text) => set({ rank: text === "" ? null : text })} />
    </div>
  );
}

function Ranks({ attempt, picked, pick }: { attempt: Attempt; picked: string; pick: (text: string) => void }) {
  const [order, sort] = useState<Order<RankKey>>({ key: "worst", down: false });
  const [only, setOnly] = useState<WorkerState | null>(null);
  const [page, setPage] = useState(0);
  const all = useMemo(() => describeWorkers(attempt), [attempt]);
  const states = countStates(attempt.workers);
  const some = only === null || !states.some(([state]) => state === only) ? all : all.filter((worker) => worker.state === only);
  const rows = useMemo(() => sortWorkers(some, order.key, order.down), [some, order]);
  const pages = Math.ceil(rows.length / PAGE);
  const at = Math.min(page, Math.max(0, pages - 1));
  const chosen = new Set(parseRanks(picked) ?? []);
  const toggle = (rank: number) => {
    if (chosen.has(rank)) chosen.delete(rank);
    else chosen.add(rank);
    pick([...chosen].sort((a, b) => a - b).join(","));
  };
  const hasGpus = all.some((worker) => worker.gpus.length > 0);
  const head = { order, sort: (next: Order<RankKey>) => { sort(next); setPage(0); } };
  if (all.length === 0) return <Nothing>Attempt {attempt.number} has no workers yet: {plural(attempt.size, "is", "are")} requested.</Nothing>;
  return (
    <Part title="Workers" aside={<div class="chips" role="group" aria-label="Show only workers that are">
      {states.map(([state, many]) => (
        <button type="button" class={`chip ${only === state ? "chosen" : ""}`} aria-pressed={only === state} onClick={() => { setOnly(only === state ? null : state); setPage(0); }}>
          <StateSign state={state} word={`${grouped(many)} ${wordOf(state)}`} />
        </button>
      ))}
    </div>}>
      <div class="table-frame" tabindex={0} role="region" aria-label="Table of workers">
        <table class="table ranks">
          <thead><tr>
            <Head by="rank" {...head}>Rank</Head>
            <Head by="worst" {...head}>State</Head>
            <th scope="col">Device</th>
            <Head by="host" {...head}>Host</Head>
            <th scope="col" class="num">PID</th>
            <Head by="num_reports" num downFirst {...head}>Reports</Head>
            <Head by="cpu" num downFirst {...head}>Cores</Head>
            <Head by="rss_bytes" num downFirst {...head}>Memory</Head>
            {hasGpus ? <Head by="gpu" downFirst {...head}>GPUs</Head> : null}
            <th scope="col">Plot</th>
          </tr></thead>
          <tbody>{rows.slice(at * PAGE, (at + 1) * PAGE).map((worker) => (
            <RankRow key={worker.rank} worker={worker} hasGpus={hasGpus} chosen={chosen.has(worker.rank)} toggle={toggle} />
          ))}</tbody>
        </table>
      </div>
      <Pages page={at} pages={pages} set={setPage} what="workers" />
    </Part>
  );
}

function wordOf(state: WorkerState): string {
  return state === "hangs" ? "hanging" : state;
}

function RankRow({ worker, hasGpus, chosen, toggle }: { worker: WorkerRow; hasGpus: boolean; chosen: boolean; toggle: (rank: number) => void }) {
  return (
    <tr class={`rank-${worker.state}`} data-rank={worker.rank} data-state={worker.state}>
      <th scope="row">{worker.rank}</th>
      <td>
        <StateSign state={worker.state} word={worker.wasKilled ? "killed" : worker.state} />
        {worker.isCause ? <span class="tag tag-bad">first cause</span> : null}
        {worker.cause === null ? null : <div class="cause">{worker.cause}</div>}
      </td>
      <td>{worker.device === "" ? "–" : worker.device}</td>
      <td class="mono">{worker.host === "" ? "–" : worker.host}</td>
      <td class="num">{worker.pid === 0 ? "–" : worker.pid}</td>
      <td class="num">{grouped(worker.num_reports)}</td>
      <td class="num">{worker.cpu === null ? "–" : number(Math.round(worker.cpu * 100) / 100)}</td>
      <td class="num">{size(worker.rss_bytes)}</td>
      {hasGpus ? <td>{worker.gpus.map((gpu) => <Gpu gpu={gpu} many={worker.gpus.length > 1} />)}</td> : null}
      <td><input type="checkbox" checked={chosen} aria-label={`Plot rank ${worker.rank}`} onChange={() => toggle(worker.rank)} /></td>
    </tr>
  );
}

function Gpu({ gpu, many }: { gpu: ShownGpu; many: boolean }) {
  const part = gpu.total_bytes > 0 ? gpu.used_bytes / gpu.total_bytes : 0;
  return (
    <div class="gpu">
      {many ? <span class="muted">{gpu.index}</span> : null}
      <span class="meter" aria-hidden="true"><span class={part > 0.95 ? "full" : ""} style={{ width: `${Math.min(100, part * 100)}%` }} /></span>
      <span>{size(gpu.used_bytes)} of {size(gpu.total_bytes)}{gpu.busy === null ? "" : `, ${share(gpu.busy)} busy`}</span>
    </div>
  );
}

function Usage({ detail, source, attempt, picked, pick }: {
  detail: ViewProps["detail"]; source: ViewProps["source"]; attempt: Attempt; picked: string; pick: (text: string) => void;
}) {
  const [series, setSeries] = useState<readonly UsageSeries[] | null>(null);
  const [problem, setProblem] = useState<string | null>(null);
  const [range, setRange] = useState<readonly [number, number] | null>(null);
  const id = detail.summary.id;
  const live = !source.fixed && !ENDED.has(detail.summary.state);
  useEffect(() => {
    let current = true;
    let timer: ReturnType<typeof setTimeout> | undefined;
    const fetchAll = () => {
      const began = performance.now();
      return source.use(id).then(
        (all) => { if (current) { setSeries(all); setProblem(null); } },
        (error) => { if (current) setProblem(textOf(error)); },
      ).then(() => {
        // Poll less often when there are many ranks.
        const pause = Math.max(document.hidden ? 15000 : 3000, 10 * (performance.now() - began));
        if (current && live) timer = setTimeout(fetchAll, pause);
      });
    };
    void fetchAll();
    return () => { current = false; clearTimeout(timer); };
  }, [id, source, live]);
  const own = useMemo(() => (series ?? []).filter((each) => each.attempt === attempt.number).sort((a, b) => a.rank - b.rank), [series, attempt.number]);
  const requested = parseRanks(picked);
  const ranks = useMemo(() => {
    if (requested !== null && requested.length > 0) return requested.slice(0, MOST_LINES);
    return own.length <= MOST_LINES ? own.map((each) => each.rank) : [];
  }, [picked, own]);
  const plots = MEASURES.filter(({ measure }) => hasMeasure(own, measure));
  const lines = useMemo(() => new Map(plots.map(({ measure }) => [measure, usageLines(own, measure, ranks)])), [own, ranks]);
  if (problem !== null) return <Note kind="bad" title="Cannot read resource usage">{problem}</Note>;
  if (series === null) return <Nothing>Loading resource usage…</Nothing>;
  return (
    <Part title="Resource usage" aside={
      <label class="pick">Ranks <input type="text" inputmode="numeric" placeholder={own.length > MOST_LINES ? "all; or 0-3, 7" : "all"} value={picked} aria-invalid={requested === null ? "true" : "false"}
        onChange={(event) => pick(event.currentTarget.value)} /></label>
    }>
      {plots.length === 0 ? <Nothing>No measurements in attempt {attempt.number}.</Nothing> : (
        <div class="plots">{plots.map(({ measure, title, kind, shows }) => (
          <Plot key={measure} title={title} lines={lines.get(measure) ?? []} xKind="clock" yKind={kind} yShows={shows} height={190} range={range} onRange={setRange} />
        ))}</div>
      )}
      {requested !== null && requested.length > MOST_LINES ? <p class="muted">The first {MOST_LINES} of {requested.length} ranks have a line each; the others are the band.</p> : null}
    </Part>
  );
}
