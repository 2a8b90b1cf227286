// What a rank printed: its end as it grows, page by page towards the beginning, or the lines that a search finds.

import { useCallback, useEffect, useLayoutEffect, useMemo, useRef, useState } from "preact/hooks";
import type { Detail, LogLine } from "../api";
import { ENDED, Note, textOf } from "../parts";
import { numberOf, one } from "../router";
import type { LogQuery, Source } from "../source";
import type { ViewProps } from "../tabs";
import { grouped, number, plural, size } from "../words";
import { asText, chunks, first, from, marked, newer, older, PAGE, readable, type Chunk, type Held } from "./loglines";
import { Copy, download, Nothing } from "./pieces";

const POLL_MS = 1000;
const CONTEXT = 100;
const WRAP = "paceline-wrap";

export function Logs({ detail, source, query, set }: ViewProps) {
  const attempts = useMemo(() => [...new Set(detail.logs.map((log) => log.attempt))].sort((a, b) => b - a), [detail.logs]);
  const asked = numberOf(query, "attempt");
  const attempt = asked !== null && attempts.includes(asked) ? asked : attempts[0];
  const files = useMemo(() => detail.logs.filter((log) => log.attempt === attempt).sort((a, b) => a.rank - b.rank), [detail.logs, attempt]);
  const rank = numberOf(query, "rank");
  const file = files.find((log) => log.rank === rank) ?? files.find((log) => log.rank === causeOf(detail, attempt)) ?? files[0];
  const search = one(query, "q") ?? "";
  const at = numberOf(query, "at");
  const [wrap, setWrap] = useState(remembered);
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
    try { localStorage.setItem(WRAP, yes ? "1" : "0"); } catch { /* It holds as long as the page does. */ }
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

function causeOf(detail: Detail, attempt: number | undefined): number | undefined {
  return detail.attempts.find((each) => each.number === attempt)?.failures.find((failure) => failure.is_cause)?.rank;
}

function remembered(): boolean {
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
  const [held, setHeld] = useState<Held | null>(null);
  const [problem, setProblem] = useState<string | null>(null);
  const [follow, setFollow] = useState(at === null);
  const frame = useRef<HTMLDivElement>(null);
  const busy = useRef(false);
  const top = useRef(0);
  const anchor = useRef<{ readonly offset: string; readonly top: number } | null>(null);
  const known = useRef<readonly Chunk[]>([]);
  const alive = useRef(true);
  useEffect(() => () => { alive.current = false; }, []);

  const ask = useCallback((more: Partial<LogQuery>) => source.logs(id, { attempt, rank, limit: PAGE, ...(search === "" ? {} : { search }), ...more }), [id, source, attempt, rank, search]);
  // One question at a time: answers are put together in the order in which they were asked for.
  const load = useCallback(async (more: () => Promise<(before: Held | null) => Held | null>) => {
    if (busy.current) return;
    busy.current = true;
    try {
      const change = await more();
      if (alive.current) { setHeld(change); setProblem(null); }
    } catch (error) {
      if (alive.current) setProblem(textOf(error));
    } finally {
      busy.current = false;
    }
  }, []);

  useEffect(() => void load(async () => {
    if (at === null) {
      const page = await ask({});
      return () => first(page);
    }
    const after = await ask({ after: at });
    const before = at > 0 ? await ask({ before: at, limit: CONTEXT }) : null;
    const held = first(after, after.lines.length < PAGE);
    return () => (before === null ? { ...held, before: null } : older(held, before));
  }), []);

  const earlier = () => {
    const until = held?.before;
    if (until === null || until === undefined) return;
    hold();
    void load(async () => { const page = await ask({ before: until }); return (now) => (now === null ? first(page) : older(now, page)); });
  };
  const later = useCallback(() => {
    if (held === null) return Promise.resolve();
    return load(async () => { const page = await ask({ after: from(held, search) }); return (now) => (now === null ? first(page) : newer(now, page)); });
  }, [held, ask]);
  useEffect(() => {
    if (held === null || !(follow && live)) return;
    // What lies between is read at once, the rest as it is written.
    const timer = setTimeout(() => void later(), held.atEnd ? (document.hidden ? POLL_MS * 5 : POLL_MS) : 0);
    const again = setInterval(() => void later(), POLL_MS);
    return () => { clearTimeout(timer); clearInterval(again); };
  }, [held, follow, live, later]);

  // The line at the top stays where it is when others come before it.
  const hold = () => {
    const element = frame.current;
    if (element === null) return;
    const { left, top } = element.getBoundingClientRect();
    const line = document.elementFromPoint(left + 12, Math.max(top, 0) + 12)?.closest<HTMLElement>(".log-line");
    anchor.current = line === undefined || line === null ? null : { offset: line.dataset["offset"] ?? "", top: line.getBoundingClientRect().top };
  };
  useLayoutEffect(() => {
    const element = frame.current;
    if (element === null || held === null) return;
    const kept = anchor.current;
    anchor.current = null;
    if (kept !== null) {
      const line = element.querySelector<HTMLElement>(`[data-offset="${kept.offset}"]`);
      if (line !== null) element.scrollTop += line.getBoundingClientRect().top - kept.top;
    } else if (follow) toEnd(element);
    else if (at !== null && element.dataset["shown"] === undefined) {
      element.querySelector(`[data-offset="${at}"]`)?.scrollIntoView({ block: "center" });
      element.dataset["shown"] = "yes";
    }
    top.current = element.scrollTop;
  }, [held, wrap, follow]);

  const scrolled = () => {
    const element = frame.current;
    if (element === null || held === null) return;
    const below = element.scrollHeight - element.scrollTop - element.clientHeight;
    // Only a person makes it go up: lines that come leave it where it is, or take it down.
    const isUp = element.scrollTop < top.current - 1;
    top.current = element.scrollTop;
    if (isUp && follow && below > 30) setFollow(false);
    if (isUp && element.scrollTop < 60) earlier();
    if (isUp || below >= 4) return;
    if (!held.atEnd) void later();
    else if (!follow && at === null) setFollow(true);
  };

  const shown = useMemo(() => (known.current = chunks(held?.lines ?? [], known.current)), [held]);
  if (problem !== null && held === null) return <Note kind="bad" title="Cannot read this log">{problem}</Note>;
  if (held === null) return <div class="log-frame log-waits" role="status">Reading…</div>;
  const lines = held.lines;
  return (
    <div class="log">
      {problem === null ? null : <Note kind="warn" title="No answer; retrying">{problem}</Note>}
      <div class="log-bar">
        <span class="dim" role="status">{told(held, search)}</span>
        <span class="grow" />
        {held.before === null ? null : <button type="button" class="small-button" onClick={earlier}>earlier</button>}
        {at !== null ? <button type="button" class="small-button" onClick={leave}>to the end</button> : null}
        {live && at === null ? <button type="button" class={`small-button ${follow ? "chosen" : ""}`} aria-pressed={follow} onClick={() => setFollow(!follow)}>{follow ? "following" : "follow"}</button> : null}
        <Copy text={() => asText(lines)} what="the lines that are shown" />
        <button type="button" class="small-button" aria-label="Download the lines that are shown" onClick={() => download(name, asText(lines))}>download</button>
      </div>
      <div class={`log-frame ${wrap ? "wraps" : ""}`} ref={frame} tabindex={0} role="log" aria-live="off" aria-label={`Log of attempt ${attempt}, rank ${rank}`} onScroll={scrolled}>
        {held.before === null && search === "" && lines.length > 0 ? <div class="log-edge">beginning of the log</div> : null}
        {shown.map((chunk) => <Lines key={chunk.key} chunk={chunk} search={search} at={at} show={search === "" ? null : show} />)}
        {lines.length === 0 ? <div class="log-edge">{search === "" ? "nothing was printed" : `nothing has “${search}” in it`}</div> : null}
        {!held.atEnd ? <button type="button" class="small-button log-more" onClick={() => void later()}>later lines</button> : null}
      </div>
    </div>
  );
}

// Lines that were never on the screen have a height that is guessed: what is seen on the way corrects it.
function toEnd(element: HTMLElement): void {
  for (let turn = 0; turn < 4; turn += 1) {
    const before = element.scrollHeight;
    element.scrollTop = before;
    if (element.scrollHeight === before) return;
  }
}

function told(held: Held, search: string): string {
  if (search !== "") return `${plural(held.lines.length, "line")} with “${search}”${held.before === null ? "" : " so far"}, in ${size(held.bytes)}`;
  const begin = held.lines[0]?.offset ?? 0;
  const whole = held.before === null && held.atEnd;
  return `${plural(held.lines.length, "line")}${whole ? "" : `, bytes ${grouped(begin)} to ${grouped(held.after)}`} of ${size(held.bytes)}`;
}

function Lines({ chunk, search, at, show }: { chunk: Chunk; search: string; at: number | null; show: ((offset: number) => void) | null }) {
  // The same element again is not looked into: only pieces that changed cost anything.
  return useMemo(() => (
    <div class="log-chunk">{chunk.lines.map((line) => (
      <div key={line.offset} class={`log-line ${line.offset === at ? "found" : ""} ${toneOf(line)}`} data-offset={String(line.offset)}>
        {show === null ? <span class="log-at" aria-hidden="true">{line.offset}</span>
          : <button type="button" class="log-at" aria-label={`Show the lines around byte ${number(line.offset)}`} onClick={() => show(line.offset)}>{line.offset}</button>}
        <span class="log-text">{marked(readable(line.text), search).map((bit) => (bit.found ? <mark>{bit.text}</mark> : bit.text))}</span>
      </div>
    ))}</div>
  ), [chunk, search, at]);
}

function toneOf(line: LogLine): string {
  if (/\b(ERROR|CRITICAL|FATAL|Traceback \(most|[A-Z]\w*(Error|Exception):)/.test(line.text)) return "is-bad";
  return /\bWARN(ING)?\b/.test(line.text) ? "is-warn" : "";
}
