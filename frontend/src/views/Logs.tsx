// The log of a rank: its end as it grows, older pages, or the lines that match a search.

import { useCallback, useEffect, useLayoutEffect, useMemo, useRef, useState } from "preact/hooks";
import type { RunSnapshot, LogLine } from "../api";
import { ENDED, Note, textOf } from "../parts";
import { numberOf, one } from "../router";
import type { LogQuery, Source } from "../source";
import type { ViewProps } from "../tabs";
import { grouped, number, plural, size } from "../words";
import { asText, chunks, startBuffer, nextOffset, highlight, appendPage, prependPage, PAGE, readable, type Chunk, type LogBuffer } from "./loglines";
import { Copy, download, Nothing } from "./pieces";

const POLL_MS = 1000;
const CONTEXT = 100;
const WRAP = "paceline-wrap";

export function Logs({ detail, source, query, set }: ViewProps) {
  const attempts = useMemo(() => [...new Set(detail.logs.map((log) => log.attempt))].sort((a, b) => b - a), [detail.logs]);
  const chosenAttempt = numberOf(query, "attempt");
  const attempt = chosenAttempt !== null && attempts.includes(chosenAttempt) ? chosenAttempt : attempts[0];
  const files = useMemo(() => detail.logs.filter((log) => log.attempt === attempt).sort((a, b) => a.rank - b.rank), [detail.logs, attempt]);
  const rank = numberOf(query, "rank");
  const file = files.find((log) => log.rank === rank) ?? files.find((log) => log.rank === causeOf(detail, attempt)) ?? files[0];
  const search = one(query, "q") ?? "";
  const at = numberOf(query, "at");
  const [wrap, setWrap] = useState(loadWrap);
  const [typed, setTyped] = useState(search);
  useEffect(() => setTyped(search), [search]);
  useEffect(() => {
    if (typed === search) return;
    const timer = setTimeout(() => set({ q: typed === "" ? null : typed, at: null }), 300);
    return () => clearTimeout(timer);
  }, [typed]);
  if (file === undefined) return <Nothing>No worker has printed anything{source.fixed ? "" : " yet"}.</Nothing>;
  const turn = (yes: boolean) => {
    setWrap(yes);
    try { localStorage.setItem(WRAP, yes ? "1" : "0"); } catch { /* The choice then lasts until the page is closed. */ }
  };
  const only = source.fixed || ENDED.has(detail.summary.state) || (detail.attempts.find((each) => each.number === file.attempt)?.ended_at ?? null) !== null;
  return (
    <div class="view logs">
      <div class="tools" role="search">
        <label>Attempt <select value={String(file.attempt)} onChange={(event) => set({ attempt: event.currentTarget.value, at: null })}>
          {attempts.map((each) => <option value={String(each)}>{each === 0 ? "validation" : each}</option>)}
        </select></label>
        <label>Rank <select value={String(file.rank)} onChange={(event) => set({ rank: event.currentTarget.value, at: null })}>
          {files.map((each) => <option value={String(each.rank)}>{each.rank}</option>)}
        </select></label>
        <input type="search" class="log-search" data-search placeholder="Search this log" aria-label="Search this log" value={typed} onInput={(event) => setTyped(event.currentTarget.value)} />
        <label class="switch"><input type="checkbox" checked={wrap} onChange={(event) => turn(event.currentTarget.checked)} /> wrap</label>
      </div>
      <LogText key={`${file.attempt}/${file.rank}/${search}/${at ?? ""}`} id={detail.summary.id} name={`${detail.summary.name}-${file.attempt}-${file.rank}.log`} source={source}
        attempt={file.attempt} rank={file.rank} search={search} at={at} wrap={wrap} live={!only} show={(offset) => set({ at: String(offset), q: null })} leave={() => set({ at: null })} />
    </div>
  );
}

function causeOf(detail: RunSnapshot, attempt: number | undefined): number | undefined {
  return detail.attempts.find((each) => each.number === attempt)?.failures.find((failure) => failure.is_cause)?.rank;
}

function loadWrap(): boolean {
  try {
    return localStorage.getItem(WRAP) !== "0";
  } catch {
    return true;
  }
}

interface LogTextProps {
  readonly id: string; readonly name: string; readonly source: Source; readonly attempt: number; readonly rank: number;
  readonly search: string; readonly at: number | null; readonly wrap: boolean; readonly live: boolean;
  readonly show: (offset: number) => void; readonly leave: () => void;
}

function LogText({ id, name, source, attempt, rank, search, at, wrap, live, show, leave }: LogTextProps) {
  const [buffer, setBuffer] = useState<LogBuffer | null>(null);
  const [problem, setProblem] = useState<string | null>(null);
  const [follow, setFollow] = useState(at === null);
  const frame = useRef<HTMLDivElement>(null);
  const busy = useRef(false);
  const top = useRef(0);
  const anchor = useRef<{ readonly offset: string; readonly top: number } | null>(null);
  const known = useRef<readonly Chunk[]>([]);
  const alive = useRef(true);
  useEffect(() => () => { alive.current = false; }, []);

  const fetchPage = useCallback((more: Partial<LogQuery>) => source.logs(id, { attempt, rank, limit: PAGE, ...(search === "" ? {} : { search }), ...more }), [id, source, attempt, rank, search]);
  // One request at a time, so that pages are added in order.
  const load = useCallback(async (more: () => Promise<(before: LogBuffer | null) => LogBuffer | null>) => {
    if (busy.current) return;
    busy.current = true;
    try {
      const change = await more();
      if (alive.current) { setBuffer(change); setProblem(null); }
    } catch (error) {
      if (alive.current) setProblem(textOf(error));
    } finally {
      busy.current = false;
    }
  }, []);

  useEffect(() => void load(async () => {
    if (at === null) {
      const page = await fetchPage({});
      return () => startBuffer(page);
    }
    const after = await fetchPage({ after: at });
    const before = at > 0 ? await fetchPage({ before: at, limit: CONTEXT }) : null;
    const buffer = startBuffer(after, after.lines.length < PAGE);
    return () => (before === null ? { ...buffer, before: null } : prependPage(buffer, before));
  }), []);

  const earlier = () => {
    const until = buffer?.before;
    if (until === null || until === undefined) return;
    keepPosition();
    void load(async () => { const page = await fetchPage({ before: until }); return (now) => (now === null ? startBuffer(page) : prependPage(now, page)); });
  };
  const later = useCallback(() => {
    if (buffer === null) return Promise.resolve();
    return load(async () => { const page = await fetchPage({ after: nextOffset(buffer, search) }); return (now) => (now === null ? startBuffer(page) : appendPage(now, page)); });
  }, [buffer, fetchPage]);
  useEffect(() => {
    if (buffer === null || !(follow && live)) return;
    // Skipped lines are read at once, new ones as they are written.
    const timer = setTimeout(() => void later(), buffer.atEnd ? (document.hidden ? POLL_MS * 5 : POLL_MS) : 0);
    const again = setInterval(() => void later(), POLL_MS);
    return () => { clearTimeout(timer); clearInterval(again); };
  }, [buffer, follow, live, later]);

  // The top line stays in place when lines are added above it.
  const keepPosition = () => {
    const element = frame.current;
    if (element === null) return;
    const { left, top } = element.getBoundingClientRect();
    const line = document.elementFromPoint(left + 12, Math.max(top, 0) + 12)?.closest<HTMLElement>(".log-line");
    anchor.current = line === undefined || line === null ? null : { offset: line.dataset["offset"] ?? "", top: line.getBoundingClientRect().top };
  };
  useLayoutEffect(() => {
    const element = frame.current;
    if (element === null || buffer === null) return;
    const anchored = anchor.current;
    anchor.current = null;
    if (anchored !== null) {
      const line = element.querySelector<HTMLElement>(`[data-offset="${anchored.offset}"]`);
      if (line !== null) element.scrollTop += line.getBoundingClientRect().top - anchored.top;
    } else if (follow) toEnd(element);
    else if (at !== null && element.dataset["shown"] === undefined) {
      element.querySelector(`[data-offset="${at}"]`)?.scrollIntoView({ block: "center" });
      element.dataset["shown"] = "yes";
    }
    top.current = element.scrollTop;
  }, [buffer, wrap, follow]);

  const scrolled = () => {
    const element = frame.current;
    if (element === null || buffer === null) return;
    const below = element.scrollHeight - element.scrollTop - element.clientHeight;
    // Only the user scrolls up: new lines never do.
    const isUp = element.scrollTop < top.current - 1;
    top.current = element.scrollTop;
    if (isUp && follow && below > 30) setFollow(false);
    if (isUp && element.scrollTop < 60) earlier();
    if (isUp || below >= 4) return;
    if (!buffer.atEnd) void later();
    else if (!follow && at === null) setFollow(true);
  };

  const shown = useMemo(() => (known.current = chunks(buffer?.lines ?? [], known.current)), [buffer]);
  if (problem !== null && buffer === null) return <Note kind="bad" title="Cannot read this log">{problem}</Note>;
  if (buffer === null) return <div class="log-frame log-waits" role="status">Reading…</div>;
  const lines = buffer.lines;
  return (
    <div class="log">
      {problem === null ? null : <Note kind="warn" title="No answer; retrying">{problem}</Note>}
      <div class="log-bar">
        <span class="dim" role="status">{describeBuffer(buffer, search)}</span>
        <span class="grow" />
        {buffer.before === null ? null : <button type="button" class="small-button" onClick={earlier}>earlier</button>}
        {at !== null ? <button type="button" class="small-button" onClick={leave}>to the end</button> : null}
        {live && at === null ? <button type="button" class={`small-button ${follow ? "chosen" : ""}`} aria-pressed={follow} onClick={() => setFollow(!follow)}>{follow ? "following" : "follow"}</button> : null}
        <Copy text={() => asText(lines)} what="the displayed lines" />
        <button type="button" class="small-button" aria-label="Download the displayed lines" onClick={() => download(name, asText(lines))}>download</button>
      </div>
      <div class={`log-frame ${wrap ? "wraps" : ""}`} ref={frame} tabindex={0} role="log" aria-live="off" aria-label={`Log of attempt ${attempt}, rank ${rank}`} onScroll={scrolled}>
        {buffer.before === null && search === "" && lines.length > 0 ? <div class="log-edge">beginning of the log</div> : null}
        {shown.map((chunk) => <Lines key={chunk.key} chunk={chunk} search={search} at={at} show={search === "" ? null : show} />)}
        {lines.length === 0 ? <div class="log-edge">{search === "" ? "nothing was printed" : `no line contains “${search}”`}</div> : null}
        {!buffer.atEnd ? <button type="button" class="small-button log-more" onClick={() => void later()}>later lines</button> : null}
      </div>
    </div>
  );
}

// Lines that were never visible have an estimated height, which scrolling corrects.
function toEnd(element: HTMLElement): void {
  for (let turn = 0; turn < 4; turn += 1) {
    const before = element.scrollHeight;
    element.scrollTop = before;
    if (element.scrollHeight === before) return;
  }
}

function describeBuffer(buffer: LogBuffer, search: string): string {
  if (search !== "") return `${plural(buffer.lines.length, "line")} with “${search}”${buffer.before === null ? "" : " so far"}, in ${size(buffer.bytes)}`;
  const begin = buffer.lines[0]?.offset ?? 0;
  const whole = buffer.before === null && buffer.atEnd;
  return `${plural(buffer.lines.length, "line")}${whole ? "" : `, bytes ${grouped(begin)} to ${grouped(buffer.after)}`} of ${size(buffer.bytes)}`;
}

function Lines({ chunk, search, at, show }: { chunk: Chunk; search: string; at: number | null; show: ((offset: number) => void) | null }) {
  // An unchanged element is not rendered again: only changed chunks cost time.
  return useMemo(() => (
    <div class="log-chunk">{chunk.lines.map((line) => (
      <div key={line.offset} class={`log-line ${line.offset === at ? "found" : ""} ${toneOf(line)}`} data-offset={String(line.offset)}>
        {show === null ? <span class="log-at" aria-hidden="true">{line.offset}</span>
          : <button type="button" class="log-at" aria-label={`Show the lines around byte ${number(line.offset)}`} onClick={() => show(line.offset)}>{line.offset}</button>}
        <span class="log-text">{highlight(readable(line.text), search).map((bit) => (bit.found ? <mark>{bit.text}</mark> : bit.text))}</span>
      </div>
    ))}</div>
  ), [chunk, search, at]);
}

function toneOf(line: LogLine): string {
  if (/\b(ERROR|CRITICAL|FATAL|Traceback \(most|[A-Z]\w*(Error|Exception):)/.test(line.text)) return "is-bad";
  return /\bWARN(ING)?\b/.test(line.text) ? "is-warn" : "";
}
