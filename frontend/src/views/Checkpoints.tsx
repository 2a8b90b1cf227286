// The checkpoints of a run: which are still there, which is best, where they lie.

import { useMemo, useState } from "preact/hooks";
import type { ShownCheckpoint } from "../api";
import { useNow } from "../parts";
import type { ViewProps } from "../tabs";
import { ago, number, plural, size, when } from "../words";
import { Copy, Head, Nothing, Pages, Part, Sign, type Order, type Tone } from "./pieces";

const PAGE = 100;
const MOST_METRICS = 4;
type Key = "seq" | "num_bytes" | "kept";

export function Checkpoints({ detail, source }: ViewProps) {
  const now = useNow(10);
  const [order, sort] = useState<Order<Key>>({ key: "seq", down: true });
  const [onlyKept, setOnlyKept] = useState(false);
  const [page, setPage] = useState(0);
  const all = detail.checkpoints;
  const rows = useMemo(() => {
    const sign = order.down ? -1 : 1;
    return (onlyKept ? all.filter((each) => each.kept) : [...all]).sort((a, b) => sign * (Number(a[order.key]) - Number(b[order.key])) || b.seq - a.seq);
  }, [all, order, onlyKept]);
  if (all.length === 0) return <Nothing>This run has no checkpoints{source.fixed ? "" : " yet"}.</Nothing>;
  const kept = all.filter((each) => each.kept);
  const names = metricNames(all, detail.summary.best?.metric ?? null);
  const pages = Math.ceil(rows.length / PAGE);
  const at = Math.min(page, Math.max(0, pages - 1));
  return (
    <div class="view checkpoints">
      <Part title="Checkpoints" aside={<div class="tools">
        <span class="dim">{plural(all.length, "checkpoint")}, {kept.length} kept, {size(kept.reduce((sum, each) => sum + each.num_bytes, 0))}</span>
        <label class="switch"><input type="checkbox" checked={onlyKept} onChange={(event) => setOnlyKept(event.currentTarget.checked)} /> only kept</label>
      </div>}>
        <div class="table-frame" tabindex={0} role="region" aria-label="Table of checkpoints">
          <table class="table">
            <thead><tr>
              <Head by="seq" order={order} sort={sort} downFirst>Checkpoint</Head>
              <Head by="kept" order={order} sort={sort} downFirst>State</Head>
              <Head by="num_bytes" order={order} sort={sort} num downFirst>Size</Head>
              {names.map((name) => <th scope="col" class="num">{name}</th>)}
              <th scope="col" class="num">Report</th>
              <th scope="col" class="num">Attempt</th>
              <th scope="col">Made</th>
              <th scope="col">Path</th>
            </tr></thead>
            <tbody>{rows.slice(at * PAGE, (at + 1) * PAGE).map((each) => (
              <tr key={each.name} class={each.kept ? "" : "faded"} data-checkpoint={each.name}>
                <th scope="row" class="mono nowrap">{each.name}</th>
                <td><span class="signs"><Status checkpoint={each} />{each.is_best ? <span class="tag tag-good">best</span> : null}{each.is_latest ? <span class="tag">latest</span> : null}</span></td>
                <td class="num nowrap">{size(each.num_bytes)}</td>
                {names.map((name) => <td class="num">{each.metrics[name] === undefined ? "–" : number(each.metrics[name])}</td>)}
                <td class="num">{number(each.seq)}</td>
                <td class="num">{each.attempt}</td>
                <td class="nowrap" title={when(each.at)}>{source.fixed ? when(each.at) : ago(each.at, now)}</td>
                <td class="path-cell"><span class="path mono" title={each.path}><bdi>{each.path}</bdi></span>{each.kept ? <Copy text={each.path} what={`the path of ${each.name}`} /> : null}</td>
              </tr>
            ))}</tbody>
          </table>
        </div>
        <Pages page={at} pages={pages} set={setPage} what="checkpoints" />
      </Part>
    </div>
  );
}

function Status({ checkpoint }: { checkpoint: ShownCheckpoint }) {
  if (!checkpoint.kept) return <Sign tone="calm" sign="○">gone</Sign>;
  const status = checkpoint.status.toLowerCase().replaceAll("_", " ");
  const tone: Tone = /failed|timeout/.test(status) ? "bad" : status.startsWith("pending") ? "live" : "good";
  return <Sign tone={tone} sign={tone === "bad" ? "✕" : tone === "live" ? "◌" : "●"}>{`kept, ${status}`}</Sign>;
}

// What checkpoints are judged by comes first.
function metricNames(all: readonly ShownCheckpoint[], best: string | null): readonly string[] {
  const names = new Set(all.flatMap((each) => Object.keys(each.metrics)));
  const sorted = [...names].sort((a, b) => Number(b === best) - Number(a === best));
  return sorted.slice(0, MOST_METRICS);
}
