// Where the time of a run went, and what limits its datasets.

import type { SaveBreakdown, ShownStage } from "../api";
import type { ViewProps } from "../tabs";
import { duration, grouped, share, size } from "../words";
import { Nothing, Part } from "./pieces";
import { explainTime, parts, saveParts, stageShares } from "./timespent";

export function TimeView({ detail }: ViewProps) {
  const all = parts(detail.spent);
  if (detail.spent.wall_s <= 0) return <Nothing>The time breakdown appears after the first measurement of the workers.</Nothing>;
  const sentences = explainTime(detail.spent, detail.stages, detail.limited_by);
  const bar = `Time breakdown: ${all.map((part) => `${part.name} ${share(part.share)}`).join(", ")}`;
  return (
    <div class="view time">
      <Part title="Time breakdown" aside={<span class="dim">wall time {duration(detail.spent.wall_s)}; of workers, the mean over the ranks</span>}>
        <div class="time-summary">{sentences.map((sentence, index) => <p class={index === 0 ? "first" : ""}>{sentence}</p>)}</div>
        <div class="time-bar" role="img" aria-label={bar}>
          {all.filter((part) => part.share > 0).map((part) => (
            <div class={`time-part part-${part.name}`} title={`${part.name}: ${duration(part.seconds)}, ${share(part.share)}`} style={{ flexGrow: String(part.share) }} data-seconds={part.seconds}>
              {part.share >= 0.08 ? <span>{part.name} {share(part.share)}</span> : null}
            </div>
          ))}
        </div>
        <table class="table time-table">
          <thead><tr><th scope="col">Part</th><th scope="col" class="num">Time</th><th scope="col" class="num">Share</th><th scope="col">What it is</th></tr></thead>
          <tbody>{all.map((part) => (
            <tr data-part={part.name}>
              <th scope="row"><span class={`patch part-${part.name}`} aria-hidden="true" />{part.name}</th>
              <td class="num">{duration(part.seconds)}</td><td class="num">{share(part.share)}</td><td class="dim">{part.what}</td>
            </tr>
          ))}</tbody>
          <tfoot><tr><th scope="row">wall</th><td class="num">{duration(all.reduce((sum, part) => sum + part.seconds, 0))}</td><td class="num">100 %</td><td /></tr></tfoot>
        </table>
      </Part>
      <Saves saves={detail.saves} />
      <Stages stages={detail.stages} limitedBy={detail.limited_by} />
    </div>
  );
}

function Saves({ saves }: { saves: SaveBreakdown | null }) {
  if (saves === null) return null;
  const all = saveParts(saves);
  return (
    <Part title="Checkpoint saves" aside={<span class="dim">the mean of {grouped(saves.num_saves)}; of the ranks, the slowest</span>}>
      <div class="table-frame" tabindex={0} role="region" aria-label="Table of what a save takes">
        <table class="table saves-table">
          <thead><tr>
            {all.map((part) => <th scope="col" class="num" title={part.what}>{part.name}</th>)}
            <th scope="col" class="num">Written</th><th scope="col" class="num">Disk</th><th scope="col" class="num">Fastest save</th>
          </tr></thead>
          <tbody><tr>
            {all.map((part) => <td class="num nowrap" data-save-part={part.name}>{duration(part.seconds)}</td>)}
            <td class="num nowrap">{size(saves.num_bytes)}</td>
            <td class="num nowrap">{saves.disk_bytes_per_s === null ? "–" : `${size(saves.disk_bytes_per_s)}/s`}</td>
            <td class="num nowrap">{saves.best_bytes_per_s === null ? "–" : `${size(saves.best_bytes_per_s)}/s`}</td>
          </tr></tbody>
        </table>
      </div>
      <p class="dim">Hashing runs beside writing. The disk's speed is that of writing and syncing, in saves of 8 MiB or more; <code>paceline doctor PATH</code> measures what the disk can do.</p>
    </Part>
  );
}

function Stages({ stages, limitedBy }: { stages: readonly ShownStage[]; limitedBy: string | null }) {
  if (stages.length === 0) return null;
  const many = new Set(stages.map((stage) => stage.dataset)).size > 1;
  return (
    <Part title="Dataset stages" aside={limitedBy === null ? undefined : <span class="dim">limited by: <strong>{limitedBy}</strong></span>}>
      <div class="table-frame" tabindex={0} role="region" aria-label="Table of stages">
        <table class="table">
          <thead><tr>
            {many ? <th scope="col">Dataset</th> : null}
            <th scope="col">Stage</th><th scope="col" class="num">Rows</th><th scope="col" class="num">Bytes</th>
            <th scope="col" class="num">At work</th><th scope="col" class="num">Waited for input</th><th scope="col" class="num">Waited for space</th><th scope="col">Shares</th>
          </tr></thead>
          <tbody>{stages.map((stage) => {
            const shares = stageShares(stage);
            return (
              <tr class={stage.limits ? "limits" : ""} data-stage={stage.name}>
                {many ? <td>{stage.dataset}</td> : null}
                <th scope="row" class="mono">{stage.name}{stage.limits ? <span class="tag tag-warn">limits</span> : null}</th>
                <td class="num">{grouped(stage.num_rows)}</td><td class="num nowrap">{size(stage.num_bytes)}</td>
                <td class="num nowrap">{duration(stage.busy_s)}</td><td class="num nowrap">{duration(stage.waited_for_input_s)}</td><td class="num nowrap">{duration(stage.waited_for_room_s)}</td>
                <td><div class="stage-bar" role="img" aria-label={`at work ${share(shares.busy)}, waiting for input ${share(shares.input)}, for space ${share(shares.room)}`}>
                  <span class="part-compute" style={{ flexGrow: String(shares.busy) }} /><span class="part-data" style={{ flexGrow: String(shares.input) }} /><span class="part-between" style={{ flexGrow: String(shares.room) }} />
                </div></td>
              </tr>
            );
          })}</tbody>
        </table>
      </div>
      <p class="dim sign-legend"><span class="patch part-compute" /> at work <span class="patch part-data" /> waiting for input <span class="patch part-between" /> waiting for space: the next stage is slower</p>
    </Part>
  );
}
