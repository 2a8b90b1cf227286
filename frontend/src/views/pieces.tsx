// Small components shared by several views.

import { type ComponentChildren } from "preact";
import { useEffect, useLayoutEffect, useRef, useState } from "preact/hooks";

export type Tone = "good" | "warn" | "bad" | "live" | "calm";

// A state as a sign and a word, so that it does not depend on colour.
export function Sign({ tone, sign, children }: { tone: Tone; sign: string; children?: ComponentChildren }) {
  return <span class={`sign sign-${tone}`}><span class="sign-mark" aria-hidden="true">{sign}</span>{children}</span>;
}

export function Nothing({ children }: { children?: ComponentChildren }) {
  return <p class="nothing">{children}</p>;
}

export function Part({ title, aside, children, id }: { title: string; aside?: ComponentChildren; children?: ComponentChildren; id?: string }) {
  return (
    <section class="part" aria-label={title} id={id}>
      <header class="part-head"><h2>{title}</h2>{aside === undefined ? null : <div class="part-aside">{aside}</div>}</header>
      {children}
    </section>
  );
}

// Rendered only when opened, since the content may be large.
export function Fold({ title, children, open = false, kind = "" }: {
  title: ComponentChildren; children: () => ComponentChildren; open?: boolean; kind?: string;
}) {
  const [isOpen, setIsOpen] = useState(open);
  useEffect(() => setIsOpen(open), [open]);
  return (
    <details class={`fold ${kind}`} open={isOpen} onToggle={(event: Event) => setIsOpen((event.currentTarget as HTMLDetailsElement).open)}>
      <summary>{title}</summary>
      {isOpen ? children() : null}
    </details>
  );
}

export function Copy({ text, label = "copy", what }: { text: string | (() => string); label?: string; what: string }) {
  const [done, setDone] = useState<string | null>(null);
  useEffect(() => {
    if (done === null) return;
    const timer = setTimeout(() => setDone(null), 1500);
    return () => clearTimeout(timer);
  }, [done]);
  const copy = () => {
    copyText(typeof text === "string" ? text : text()).then((yes) => setDone(yes ? "copied" : "not allowed"), () => setDone("not allowed"));
  };
  return <button type="button" class="small-button" aria-label={`Copy ${what}`} onClick={copy}><span aria-live="polite">{done ?? label}</span></button>;
}

async function copyText(text: string): Promise<boolean> {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    // The clipboard may be unavailable to a local file or a background window; fall back to execCommand.
    const area = document.createElement("textarea");
    area.value = text;
    area.className = "away";
    document.body.append(area);
    area.select();
    const yes = document.execCommand("copy");
    area.remove();
    return yes;
  }
}

export function download(name: string, text: string): void {
  const url = URL.createObjectURL(new Blob([text], { type: "text/plain;charset=utf-8" }));
  const link = document.createElement("a");
  link.href = url;
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(url), 1000);
}

export interface Order<K extends string> { readonly key: K; readonly down: boolean }

// The header of a sortable column.
export function Head<K extends string>({ by, order, sort, children, num = false, downFirst = false }: {
  by: K; order: Order<K>; sort: (order: Order<K>) => void; children?: ComponentChildren; num?: boolean; downFirst?: boolean;
}) {
  const here = order.key === by;
  return (
    <th scope="col" class={num ? "num" : ""} aria-sort={here ? (order.down ? "descending" : "ascending") : "none"}>
      <button type="button" class="head-button" onClick={() => sort({ key: by, down: here ? !order.down : downFirst })}>
        <span>{children}</span><span class="head-sign" aria-hidden="true">{here ? (order.down ? "↓" : "↑") : ""}</span>
      </button>
    </th>
  );
}

export function Pages({ page, pages, set, what }: { page: number; pages: number; set: (page: number) => void; what: string }) {
  if (pages <= 1) return null;
  return (
    <nav class="pages" aria-label={`Pages of ${what}`}>
      <button type="button" class="small-button" disabled={page === 0} onClick={() => set(page - 1)}>‹ previous</button>
      <span>{page + 1} of {pages}</span>
      <button type="button" class="small-button" disabled={page >= pages - 1} onClick={() => set(page + 1)}>next ›</button>
    </nav>
  );
}

// The width of an element while it is visible.
export function useWidth(initial: number): [{ current: HTMLDivElement | null }, number] {
  const place = useRef<HTMLDivElement>(null);
  const [width, setWidth] = useState(initial);
  useLayoutEffect(() => {
    const element = place.current;
    if (element === null) return;
    const measure = () => setWidth(Math.max(50, Math.floor(element.clientWidth)));
    measure();
    const observer = new ResizeObserver(measure);
    observer.observe(element);
    return () => observer.disconnect();
  }, []);
  return [place, width];
}

const STATES: Readonly<Record<string, readonly [Tone, string]>> = {
  starting: ["live", "◌"], running: ["live", "●"], waiting: ["warn", "◔"], stopping: ["warn", "◑"], validating: ["live", "◕"],
  finished: ["good", "✓"], returned: ["good", "✓"], failed: ["bad", "✕"], stopped: ["calm", "■"], preempted: ["warn", "⇥"],
  lost: ["bad", "?"], hangs: ["warn", "‖"], gone: ["calm", "○"], resized: ["calm", "⇔"],
};

// Of a run, an attempt or a worker.
export function StateSign({ state, word }: { state: string; word?: string }) {
  const [tone, sign] = STATES[state] ?? ["calm", "·"];
  return <Sign tone={tone} sign={sign}>{word ?? state}</Sign>;
}
