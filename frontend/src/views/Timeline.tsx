// Attempts as bars over time with entries as marks, and a list of attempts with what ended them.

import { Fragment } from "preact";
import { useMemo, useState } from "preact/hooks";
import type { Attempt, RunSnapshot, ShownHang, ShownFailure } from "../api";
import { ENDED, useNow } from "../parts";
import { toRun } from "../router";
import type { Source } from "../source";
import type { ViewProps } from "../tabs";
import { duration, number, plural, when } from "../words";
import { Copy, Fold, Nothing, Part, Sign, StateSign, useWidth } from "./pieces";
import { causes, layoutTimeline, type Mark, type MarkKind } from "./timeline";

const LANE = 26;
const LABELS = 34;
const HEAD = 20;
const MOST_EVENTS = 300;
const MOST_ATTEMPTS = 20;

const SHAPES: Readonly<Record<MarkKind, string>> = {
  checkpoint: "M0 -5 L5 0 L0 5 L-5 0 Z",
  failure: "M-4 -4 L4 4 M4 -4 L-4 4",
  hang: "M-2.5 -5 V5 M2.5 -5 V5",
  preemption: "M-5 0 H4 M0 -4 L4 0 L0 4 M5 -5 V5",
  stop: "M-4 -4 H4 V4 H-4 Z",
  resize: "M-6 0 H6 M-3 -3 L-6 0 L-3 3 M3 -3 L6 0 L3 3",
  end: "M0 -7 V7",
  other: "M0 -3 A3 3 0 1 1 0 3 A3 3 0 1 1 0 -3",
};
const KINDS: readonly [MarkKind, string][] = [
  ["checkpoint", "checkpoint"], ["failure", "failure"], ["hang", "hang"], ["preemption", "preemption"], ["stop", "stop"], ["resize", "resize"],
];

export function Timeline({ detail, source }: ViewProps) {
  const [all, setAll] = useState(false);
  if (detail.attempts.length === 0 && detail.timeline.length === 0) return <Nothing>No attempt has started yet.</Nothing>;
  return (
    <div class="view timeline">
      <Chart detail={detail} fixed={source.fixed} />
      <Part title="Attempts" aside={<span class="dim">{plural(detail.attempts.length, "attempt")}, {plural(detail.summary.num_failures, "failure")}</span>}>
        {[...detail.attempts].reverse().slice(0, all ? undefined : MOST_ATTEMPTS).map((attempt) => <OneAttempt key={attempt.number} attempt={attempt} detail={detail} source={source} />)}
        {all || detail.attempts.length <= MOST_ATTEMPTS ? null : <button type="button" class="small-button" onClick={() => setAll(true)}>all {detail.attempts.length} attempts</button>}
      </Part>
      <Events detail={detail} />
    </div>
  );
}

function Chart({ detail, fixed }: { detail: RunSnapshot; fixed: boolean }) {
  const goesOn = !fixed && !ENDED.has(detail.summary.state);
  const clock = useNow(goesOn ? 1 : 3600);
  const now = goesOn ? clock : detail.summary.ended_at ?? detail.summary.updated_at;
  const [place, whole] = useWidth(900);
  const [hovered, setHovered] = useState<string | null>(null);
  const width = Math.max(120, whole - LABELS - 12);
  const chart = useMemo(() => layoutTimeline(detail, width, now), [detail, width, now]);
  const height = HEAD + chart.lanes.length * LANE + 6;
  const kinds = KINDS.filter(([kind]) => chart.lanes.some((lane) => lane.marks.some((mark) => mark.kind === kind)));
  const hoverHandlers = (text: string) => ({ onPointerEnter: () => setHovered(text), onPointerLeave: () => setHovered(null), onFocus: () => setHovered(text), onBlur: () => setHovered(null) });
  return (
    <Part title="Timeline" aside={<span class="sign-legend dim">{kinds.map(([kind, word]) => (
      <span class="sign-label"><svg width="14" height="14" viewBox="-7 -7 14 14" aria-hidden="true"><path class={`event-mark mark-${kind}`} d={SHAPES[kind]} /></svg>{word}</span>
    ))}</span>}>
      <div class="timeline-frame" ref={place}><div class="timeline-scroll">
        <svg class="timeline-chart" width={whole} height={height} role="group" aria-label={`Timeline: ${plural(detail.attempts.length, "attempt")} in ${duration(chart.to - chart.from)}`}>
          {chart.ticks.map((tick) => (
            <g class="tick" transform={`translate(${LABELS + tick.x} 0)`}>
              <line y1={HEAD - 4} y2={height} /><text y={12} text-anchor={tick.x < 20 ? "start" : tick.x > width - 30 ? "end" : "middle"}>{tick.after === 0 ? "0" : duration(tick.after)}</text>
            </g>
          ))}
          {chart.lanes.map((lane, index) => {
            const y = HEAD + index * LANE + LANE / 2;
            const bar = lane.bar;
            const text = bar === null ? "" : summary(bar.attempt, now);
            return (
              <g transform={`translate(0 ${y})`} data-lane={bar === null ? "none" : bar.attempt.number}>
                {bar === null ? null : (
                  <Fragment>
                    <text class="lane-name" x={LABELS - 8} y={4} text-anchor="end">{bar.attempt.number}</text>
                    <a href={`#attempt-${bar.attempt.number}`} aria-label={text} onClick={(event) => { event.preventDefault(); document.getElementById(`attempt-${bar.attempt.number}`)?.scrollIntoView({ behavior: "smooth", block: "start" }); }} {...hoverHandlers(text)}>
                      <rect class={`attempt-bar ending-${bar.attempt.ending === "" ? "open" : bar.attempt.ending}`} x={LABELS + bar.left} y={-8} width={bar.width} height={16} rx={3} />
                    </a>
                  </Fragment>
                )}
                {lane.marks.map((mark) => {
                  const words = markWords(mark);
                  return (
                    <g class="mark-place" tabindex={0} role="img" aria-label={words} transform={`translate(${LABELS + mark.x} 0)`} {...hoverHandlers(words)}>
                      <rect class="mark-area" x={-8} y={-11} width={16} height={22} />
                      <path class={`event-mark mark-${mark.kind}`} d={SHAPES[mark.kind]} />
                    </g>
                  );
                })}
              </g>
            );
          })}
        </svg></div>
        <p class="timeline-details" aria-live="polite">{hovered ?? <span class="dim">{when(chart.from)} to {goesOn ? "now" : when(chart.to)}; hover over a bar or a mark for details</span>}</p>
      </div>
    </Part>
  );
}

function markWords(mark: Mark): string {
  const first = mark.of[0];
  if (first === undefined) return "";
  const more = mark.of.length - 1;
  return `${when(first.at)} ${first.text}${more > 0 ? `, and ${more} more of this kind` : ""}`;
}

function summary(attempt: Attempt, now: number): string {
  const took = duration((attempt.ended_at ?? now) - attempt.began_at);
  return `Attempt ${attempt.number}: ${plural(attempt.size, "worker")}, ${attempt.ending === "" ? `for ${took}` : `${attempt.ending} after ${took}`}`;
}

function OneAttempt({ attempt, detail, source }: { attempt: Attempt; detail: RunSnapshot; source: Source }) {
  const goesOn = attempt.ended_at === null && !source.fixed && !ENDED.has(detail.summary.state);
  const now = useNow(goesOn ? 1 : 3600);
  const { first, echoes } = causes(attempt);
  const until = attempt.ended_at ?? (goesOn ? now : detail.summary.updated_at);
  const id = detail.summary.id;
  return (
    <article class="attempt" id={`attempt-${attempt.number}`} data-attempt={attempt.number}>
      <header class="attempt-head">
        <h3>Attempt {attempt.number}</h3>
        <StateSign state={attempt.ending === "" ? (ENDED.has(detail.summary.state) ? detail.summary.state : "running") : attempt.ending} />
        <dl class="facts-line">
          <div><dt>began</dt><dd>{when(attempt.began_at)}</dd></div>
          <div><dt>took</dt><dd>{duration(until - attempt.began_at)}</dd></div>
          <div><dt>workers</dt><dd>{attempt.size}</dd></div>
          {attempt.last_report > 0 ? <div><dt>reports</dt><dd>{number(attempt.first_report)}–{number(attempt.last_report)}</dd></div> : null}
          {attempt.resumed_from === null ? null : <div><dt>resumed from</dt><dd class="mono">{attempt.resumed_from}</dd></div>}
        </dl>
        <span class="attempt-links"><a href={toRun(id, "workers", { attempt: [String(attempt.number)] })}>workers</a> <a href={toRun(id, "logs", { attempt: [String(attempt.number)], ...(first[0] === undefined ? {} : { rank: [String(first[0].rank)] }) })}>logs</a></span>
      </header>
      {first.map((failure) => <Failed failure={failure} isCause />)}
      {echoes.length === 0 ? null : (
        <Fold title={`${plural(echoes.length, "other failure")} that came later or are secondary: ${ranksOf(echoes)}`}>{() => echoes.slice(0, 50).map((failure) => <Failed failure={failure} isCause={false} />)}</Fold>
      )}
      {attempt.hangs.map((hang) => <Hung hang={hang} id={id} source={source} />)}
    </article>
  );
}

function ranksOf(failures: readonly ShownFailure[]): string {
  const ranks = failures.map((failure) => failure.rank);
  return `rank${ranks.length === 1 ? "" : "s"} ${ranks.slice(0, 12).join(", ")}${ranks.length > 12 ? "…" : ""}`;
}

function Failed({ failure, isCause }: { failure: ShownFailure; isCause: boolean }) {
  const [summary, ...rest] = failure.message.split("\n");
  return (
    <div class={`failure ${isCause ? "is-cause" : "is-echo"}`} data-rank={failure.rank}>
      <p class="failure-who"><Sign tone={isCause ? "bad" : "calm"} sign={isCause ? "✕" : "↳"}>{isCause ? "First cause" : "Secondary"}</Sign>
        <span>rank {failure.rank}{failure.host === "" ? "" : ` on ${failure.host}`}{failure.pid > 0 ? `, pid ${failure.pid}` : ""}, {when(failure.at)}</span>
        <span class="tag">{failure.kind}</span></p>
      <p class="failure-message">{summary}</p>
      {rest.length > 0 ? <pre class="text">{rest.join("\n")}</pre> : null}
      {failure.frames.length > 0 ? <ol class="frames" aria-label="Your own frames, innermost last">{failure.frames.map((frame) => <li>{frame}</li>)}</ol> : null}
      {failure.traceback === "" ? null : (
        <Fold title="Full traceback">{() => <div class="text-frame"><Copy text={failure.traceback} what={`the traceback of rank ${failure.rank}`} /><pre class="text" tabindex={0}>{failure.traceback}</pre></div>}</Fold>
      )}
    </div>
  );
}

function Hung({ hang, id, source }: { hang: ShownHang; id: string; source: Source }) {
  const url = hang.stacks === null ? null : source.fileUrl(id, hang.stacks);
  return (
    <div class="hang" data-rank={hang.rank}>
      <p class="failure-who"><Sign tone="warn" sign="‖">Hang</Sign><span>rank {hang.rank}, {when(hang.at)}</span>
        {hang.passed_after_s === null ? null : <span class="tag tag-good">continued after {duration(hang.passed_after_s)}</span>}</p>
      <p class="failure-message">{hang.verdict}</p>
      <p class="dim">{hang.action}{hang.stacks === null ? null : <span>{hang.action === "" ? "" : " · "}stacks: {url === null ? <code>{hang.stacks}</code> : <a href={url} target="_blank" rel="noopener">{hang.stacks}</a>}</span>}</p>
    </div>
  );
}

function Events({ detail }: { detail: RunSnapshot }) {
  if (detail.timeline.length === 0) return null;
  return (
    <Fold kind="fold-part" title={`All events (${number(detail.timeline.length)})`}>{() => {
      const all = [...detail.timeline].reverse();
      return (
        <div class="table-frame">
          <table class="table">
            <thead><tr><th scope="col">When</th><th scope="col">After</th><th scope="col">What</th><th scope="col" class="num">Attempt</th><th scope="col" class="num">Rank</th></tr></thead>
            <tbody>{all.slice(0, MOST_EVENTS).map((each) => (
              <tr class={`event-${each.kind}`}>
                <td class="nowrap">{when(each.at)}</td><td class="nowrap dim">{duration(Math.max(0, each.at - detail.summary.began_at))}</td>
                <td>{each.text}</td><td class="num">{each.attempt > 0 ? each.attempt : ""}</td><td class="num">{each.rank ?? ""}</td>
              </tr>
            ))}</tbody>
          </table>
          {all.length > MOST_EVENTS ? <p class="dim">The last {MOST_EVENTS} of {number(all.length)}.</p> : null}
        </div>
      );
    }}</Fold>
  );
}
