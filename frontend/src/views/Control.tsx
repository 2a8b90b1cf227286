// Requests to a running run: stop, stacks and profile.

import { Fragment, type ComponentChildren } from "preact";
import { useEffect, useRef, useState } from "preact/hooks";
import type { ShownFile, Summary } from "../api";
import { Bar, Note, textOf } from "../parts";
import type { Source } from "../source";
import type { ControlProps } from "../tabs";
import { duration, plural } from "../words";
import { fileLink } from "./Files";
import { Copy } from "./pieces";

const LONGEST = 300;

export function Control({ source, summary }: ControlProps) {
  const [open, setOpen] = useState<"stop" | "stacks" | "profile" | null>(null);
  const close = () => setOpen(null);
  // A search has no workers of its own; its trials have their own pages.
  const isSearch = summary.kind === "search";
  return (
    <Fragment>
      <span class="control" role="group" aria-label="Control of this run">
        {isSearch ? null : <button type="button" onClick={() => setOpen("stacks")}>Stacks</button>}
        {isSearch ? null : <button type="button" onClick={() => setOpen("profile")}>Profile</button>}
        <button type="button" class="bad" onClick={() => setOpen("stop")}>Stop</button>
      </span>
      {open === "stop" ? <Stop source={source} summary={summary} close={close} /> : null}
      {open === "stacks" ? <Stacks source={source} summary={summary} close={close} /> : null}
      {open === "profile" ? <Profile source={source} summary={summary} close={close} /> : null}
    </Fragment>
  );
}

function Dialog({ title, close, children }: { title: string; close: () => void; children?: ComponentChildren }) {
  const place = useRef<HTMLDialogElement>(null);
  useEffect(() => {
    const dialog = place.current;
    dialog?.showModal();
    return () => dialog?.close();
  }, []);
  return (
    <dialog class="request" ref={place} aria-label={title} onCancel={(event: Event) => { event.preventDefault(); close(); }}
      onKeyDown={(event) => event.stopPropagation()} onClick={(event) => { if (event.target === event.currentTarget) close(); }}>
      <div class="request-body">
        <header><h2>{title}</h2><button type="button" class="small-button" aria-label="Close" onClick={close}>✕</button></header>
        {children}
      </div>
    </dialog>
  );
}

type RequestState = { readonly state: "idle" } | { readonly state: "waits" } | { readonly state: "done"; readonly text: string } | { readonly state: "failed"; readonly text: string };

function useRequest(): [RequestState, (what: () => Promise<string>) => void] {
  const [request, setRequest] = useState<RequestState>({ state: "idle" });
  const alive = useRef(true);
  useEffect(() => () => { alive.current = false; }, []);
  const ask = (what: () => Promise<string>) => {
    setRequest({ state: "waits" });
    what().then(
      (text) => { if (alive.current) setRequest({ state: "done", text }); },
      (error: unknown) => { if (alive.current) setRequest({ state: "failed", text: textOf(error) }); },
    );
  };
  return [request, ask];
}

interface AskProps { readonly source: Source; readonly summary: Summary; readonly close: () => void }

function Stop({ source, summary, close }: AskProps) {
  const [request, ask] = useRequest();
  const [sure, setSure] = useState(false);
  const isRequested = request.state === "done" || summary.state === "stopping";
  return (
    <Dialog title={`Stop “${summary.name}”?`} close={close}>
      {request.state === "failed" ? <Note kind="bad" title="The stop request failed">{request.text}</Note> : null}
      {request.state === "waits" ? <p role="status">Sending the request…</p> : null}
      {isRequested ? <p role="status">{request.state === "done" && request.text !== "" ? request.text : "Stop requested. Workers end at their next report, which may take as long as a step."}</p>
        : <p>{summary.kind === "search" ? "Trials" : "Workers"} end at their next report, and checkpoints that are being written become durable. It can be resumed.</p>}
      {sure ? <p class="warned">Now: workers end at once. Their work since the last checkpoint is lost.</p> : null}
      <div class="request-buttons">
        <button type="button" onClick={close}>{isRequested ? "Close" : "Cancel"}</button>
        {sure ? <button type="button" class="bad" disabled={request.state === "waits"} onClick={() => ask(() => source.stop(summary.id, true))}>Yes, stop it now</button>
          : <button type="button" class="bad" disabled={request.state === "waits"} onClick={() => setSure(true)}>Stop now…</button>}
        {isRequested ? null : <button type="button" class="main" disabled={request.state === "waits"} onClick={() => ask(() => source.stop(summary.id, false))}>Stop at the next report</button>}
      </div>
    </Dialog>
  );
}

function Stacks({ source, summary, close }: AskProps) {
  const [request, ask] = useRequest();
  const [text, setText] = useState("");
  const again = () => ask(() => source.stacks(summary.id).then((answer) => (setText(answer), answer)));
  useEffect(again, []);
  return (
    <Dialog title={`Stacks of “${summary.name}”`} close={close}>
      {request.state === "waits" ? <p role="status">Asking {plural(summary.num_workers, "rank")} for their stacks…</p> : null}
      {request.state === "failed" ? <Note kind="bad" title="No stacks">{request.text}</Note> : null}
      {text === "" ? null : <div class="text-frame"><Copy text={text} what="the stacks" /><pre class="text stacks" tabindex={0}>{text}</pre></div>}
      <div class="request-buttons"><button type="button" onClick={close}>Close</button><button type="button" class="main" disabled={request.state === "waits"} onClick={again}>Again</button></div>
    </Dialog>
  );
}

// The new files of the run. The server may lag behind the run, so the list must be the same twice.
async function waitForFiles(source: Source, id: string, before: ReadonlySet<string>): Promise<readonly ShownFile[]> {
  let previous: readonly ShownFile[] = [];
  for (let turn = 0; turn < 12; turn += 1) {
    const files = (await source.run(id)).files.filter((file) => !before.has(file.path));
    if (files.length > 0 && files.length === previous.length) return files;
    previous = files;
    await new Promise((done) => setTimeout(done, 400));
  }
  return previous;
}

function Profile({ source, summary, close }: AskProps) {
  const [request, ask] = useRequest();
  const [seconds, setSeconds] = useState("10");
  const [rank, setRank] = useState("0");
  const [passed, setPassed] = useState(0);
  const [files, setFiles] = useState<readonly ShownFile[]>([]);
  const long = Number(seconds);
  const isFine = Number.isFinite(long) && long > 0 && long <= LONGEST;
  useEffect(() => {
    if (request.state !== "waits") return;
    const began = performance.now();
    const timer = setInterval(() => setPassed((performance.now() - began) / 1000), 200);
    return () => clearInterval(timer);
  }, [request.state]);
  const start = () => ask(async () => {
    setPassed(0);
    const before = new Set((await source.run(summary.id)).files.map((file) => file.path));
    const answer = await source.profile(summary.id, long, rank === "" ? null : Number(rank));
    setFiles(await waitForFiles(source, summary.id, before));
    return answer;
  });
  return (
    <Dialog title={`Profile “${summary.name}”`} close={close}>
      <form class="request-form" onSubmit={(event) => { event.preventDefault(); if (isFine && request.state !== "waits") start(); }}>
        <label>Seconds <input type="number" min="1" max={LONGEST} step="any" value={seconds} aria-invalid={!isFine} onInput={(event) => setSeconds(event.currentTarget.value)} /></label>
        <label>Rank <select value={rank} onChange={(event) => setRank(event.currentTarget.value)}>
          <option value="">all ranks</option>{Array.from({ length: summary.num_workers }, (_, index) => <option value={String(index)}>{index}</option>)}
        </select></label>
      </form>
      {request.state === "waits" ? <div role="status"><Bar part={Math.min(0.99, passed / (long + 1))} label="progress of the profile" /> <span class="dim">{passed < long ? `${duration(Math.max(0, long - passed))} left` : "writing it down…"}</span></div> : null}
      {request.state === "failed" ? <Note kind="bad" title="No profile">{request.text}</Note> : null}
      {request.state === "done" ? <ul class="created-files" aria-label="Created files">{files.map((file) => <li>{fileLink(source, summary.id, file)}</li>)}{files.length === 0 ? <li class="dim">{request.text === "" ? "The files will be under Profiles." : request.text}</li> : null}</ul> : null}
      <div class="request-buttons"><button type="button" onClick={close}>Close</button>
        <button type="button" class="main" disabled={!isFine || request.state === "waits"} onClick={start}>{request.state === "done" ? "Profile again" : "Start"}</button></div>
    </Dialog>
  );
}
