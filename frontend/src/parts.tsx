// Small components that all views use: badges, bars, notes, loading and errors.

import type { ComponentChildren } from "preact";
import { useEffect, useErrorBoundary, useRef, useState } from "preact/hooks";
import type { State } from "./api";
import { share } from "./words";

export const ENDED: ReadonlySet<State> = new Set<State>(["finished", "failed", "stopped", "preempted", "lost"]);

export function Badge({ state }: { state: string }) {
  return <span class={`badge is-${state}`}>{state}</span>;
}

export function Bar({ part, label }: { part: number; label?: string }) {
  const percent = Math.max(0, Math.min(1, part)) * 100;
  return (
    <span class="bar" role="progressbar" aria-valuemin={0} aria-valuemax={100} aria-valuenow={Math.round(percent)}
      aria-label={label ?? "progress"} title={share(part)}>
      <span class="bar-filled" style={{ width: `${percent}%` }} />
    </span>
  );
}

export function Note({ kind = "plain", title, children }: {
  kind?: "plain" | "bad" | "warn"; title?: string; children?: ComponentChildren;
}) {
  return (
    <div class={`note note-${kind}`} role={kind === "plain" ? undefined : "alert"}>
      {title === undefined ? null : <strong class="note-title">{title}</strong>}
      <div class="note-text">{children}</div>
    </div>
  );
}

export function Empty({ title, children }: { title: string; children?: ComponentChildren }) {
  return <div class="empty"><h2>{title}</h2>{children}</div>;
}

export function Loading({ what }: { what: string }) {
  return <p class="loading" role="status">Loading {what} …</p>;
}

// A view that fails says so, and the rest of the page stays.
export function Guarded({ children, what }: { children?: ComponentChildren; what: string }) {
  const [error, retry] = useErrorBoundary((failed) => console.error(failed));
  if (error === undefined) return <div class="guarded">{children}</div>;
  return (
    <Note kind="bad" title={`${what} cannot be shown`}>
      <p>{textOf(error)}</p><button type="button" onClick={() => retry()}>Try again</button>
    </Note>
  );
}

export function textOf(error: unknown): string {
  return error instanceof Error ? error.message : String(error);
}

export interface Loaded<T> { readonly value: T | null; readonly error: string | null; readonly loading: boolean }

// The result of `load`, loaded again when an input changes; the old value stays until then.
export function useLoaded<T>(load: () => Promise<T>, inputs: readonly unknown[]): Loaded<T> {
  const [loaded, setLoaded] = useState<Loaded<T>>({ value: null, error: null, loading: true });
  useEffect(() => {
    let wanted = true;
    setLoaded((before) => ({ ...before, loading: true }));
    load().then(
      (value) => wanted && setLoaded({ value, error: null, loading: false }),
      (error: unknown) => wanted && setLoaded((before) => ({ value: before.value, error: textOf(error), loading: false })),
    );
    return () => void (wanted = false);
  }, inputs);
  return loaded;
}

// Seconds since the epoch, updated regularly, for ages.
export function useNow(everySeconds = 5): number {
  const [now, setNow] = useState(Date.now() / 1000);
  useEffect(() => {
    const timer = setInterval(() => setNow(Date.now() / 1000), everySeconds * 1000);
    return () => clearInterval(timer);
  }, [everySeconds]);
  return now;
}

// Whether the element is, or soon will be, on the screen.
export function useVisible<E extends Element>(): [{ current: E | null }, boolean] {
  const ref = useRef<E>(null);
  const [seen, setSeen] = useState(false);
  useEffect(() => {
    if (ref.current === null) return;
    const watch = new IntersectionObserver((entries) => setSeen(entries.some((entry) => entry.isIntersecting)), { rootMargin: "200px" });
    watch.observe(ref.current);
    return () => watch.disconnect();
  }, []);
  return [ref, seen];
}
