// The page: its frame and the current view.
//
// Where views plug in (`tabs.ts`): a tab of a run is `{id, title, view}` in `runTabs`, its view gets `ViewProps`; the
// view of a search, of a difference and the buttons of a run go into `places`. What a person chooses in a view is kept
// in the address: read `query` with `one`, `many`, `numberOf` of `router.ts`, change it with `set({key: value | null})`.
// Links: `toRun(id, tab)`, `toCompare(ids)`. Plots: `<Plot title lines .../>` of `plot/Plot.tsx`, with colours
// `lineColor(i)` of `plot/colors.ts` ("var(--s3)": both a canvas and a style take it). Badges, bars, notes, what is
// loading and the guard against a view that fails: `parts.tsx`. Words for numbers and times: `words.ts`. Rows of lists
// have `data-item` and tabindex="0" for j/k/Enter, search fields `data-search` for `/`: `keys.ts`.
// Styles: `css/0-base.css` has the colours as variables (--ink, --soft, --line, --paper, --accent, --good, --bad,
// --warn, --s0 .. --s9) and the classes of common things (.card, .table, .grid, .row, .chip, .field, .mono, .dim).

import { Fragment } from "preact";
import { useCallback, useEffect, useRef, useState } from "preact/hooks";
import type { AboutAnswer, Summary } from "./api";
import { Compare } from "./compare";
import { KEYS, listen } from "./keys";
import { Guarded, Loading, Note, textOf } from "./parts";
import { formatRoute, go, patchQuery, toRuns, useRoute } from "./router";
import type { Patch } from "./router";
import { RunPage } from "./run";
import { Runs } from "./runs";
import type { Source } from "./source";
import { nextTheme, saveTheme, loadTheme } from "./theme";
import type { Theme } from "./theme";

export interface AppProps { readonly source: Source }

export function App({ source }: AppProps) {
  const route = useRoute();
  const [theme, setTheme] = useState<Theme>(loadTheme);
  const [help, setHelp] = useState(false);
  const { about, runs, error, connected } = useRuns(source);
  const turn = () => setTheme((before) => (saveTheme(nextTheme(before)), nextTheme(before)));
  const isHelp = useRef(help);
  isHelp.current = help;
  useEffect(() => listen({
    help: () => setHelp((before) => !before),
    close: () => (isHelp.current ? (setHelp(false), true) : false),
    theme: turn,
  }), []);
  const set = useCallback((patch: Patch) => {
    go(formatRoute({ ...route, query: patchQuery(route.query, patch) }), true);
  }, [route]);
  const only = source.fixed && runs !== null ? runs[0] : undefined;
  const here = only !== undefined && route.page !== "run" ? { page: "run" as const, id: only.id, tab: "", query: route.query } : route;
  return (
    <Fragment>
      <a class="skip" href="#main" onClick={(event) => (event.preventDefault(), document.getElementById("main")?.focus())}>Skip to content</a>
      <header class="top">
        <a class="brand" {...(source.fixed ? {} : { href: toRuns() })} aria-label="Paceline: all runs"><Mark />Paceline</a>
        <span class="top-root mono dim" title={about?.root ?? ""}>{about?.root ?? ""}</span>
        <span class="grow" />
        {source.fixed ? <span class="chip">report</span> : <Connection yes={connected} />}
        <button type="button" class="quiet" onClick={turn} title="Light, dark or system theme (t)"
          aria-label={`Colours: ${theme}`}>{theme === "system" ? "◐" : theme === "light" ? "☀" : "☾"}</button>
        <button type="button" class="quiet" onClick={() => setHelp(true)} title="Keys (?)" aria-label="Keys">?</button>
      </header>
      <main id="main" tabIndex={-1}>
        {error === null ? null : <Note kind="bad" title="Cannot read the runs">{error}</Note>}
        <Guarded key={here.page} what="This page">
          {runs === null ? (error === null ? <Loading what="runs" /> : null)
            : here.page === "run" ? <RunPage key={here.id} source={source} route={here} runs={runs} about={about} set={set} />
            : here.page === "compare" ? <Compare source={source} runs={runs} query={here.query} set={set} />
            : <Runs source={source} runs={runs} query={here.query} set={set} root={about?.root ?? ""} />}
        </Guarded>
      </main>
      {help ? <Help close={() => setHelp(false)} /> : null}
    </Fragment>
  );
}

interface RunsState {
  readonly about: AboutAnswer | null;
  readonly runs: readonly Summary[] | null;
  readonly error: string | null;
  readonly connected: boolean;
}

function useRuns(source: Source): RunsState {
  const [about, setAbout] = useState<AboutAnswer | null>(null);
  const [runs, setRuns] = useState<readonly Summary[] | null>(null);
  const [error, setError] = useState<string | null>(null);
  const [connected, setConnected] = useState(true);
  useEffect(() => {
    let wanted = true;
    source.about().then((value) => wanted && setAbout(value), (failed: unknown) => wanted && setError(textOf(failed)));
    source.runs().then((value) => wanted && (setRuns(value), setError(null)), (failed: unknown) => wanted && setError(textOf(failed)));
    const end = source.follow({
      runs: (changed, gone) => (setRuns((before) => mergeRuns(before ?? [], changed, gone)), setError(null)),
      connected: setConnected,
    });
    return () => (wanted = false, end());
  }, [source]);
  return { about, runs, error, connected };
}

function mergeRuns(before: readonly Summary[], changed: readonly Summary[], gone: readonly string[]): readonly Summary[] {
  const fresh = new Map(changed.map((run) => [run.id, run]));
  const kept = before.filter((run) => !gone.includes(run.id)).map((run) => fresh.get(run.id) ?? run);
  const known = new Set(before.map((run) => run.id));
  return [...kept, ...changed.filter((run) => !known.has(run.id))];
}

function Connection({ yes }: { yes: boolean }) {
  return (
    <span class={`live ${yes ? "is-on" : "is-off"}`} role="status" title={yes ? "Updates live" : "The server does not answer; trying again"}>
      {yes ? "live" : "no connection"}
    </span>
  );
}

function Mark() {
  return (
    <svg class="mark" viewBox="0 0 24 24" width="20" height="20" aria-hidden="true">
      <path d="M2 18 L8 10 L12 14 L22 4" fill="none" stroke="currentColor" stroke-width="2.6" stroke-linecap="round" stroke-linejoin="round" />
      <circle cx="22" cy="4" r="2" fill="currentColor" />
    </svg>
  );
}

function Help({ close }: { close: () => void }) {
  const ref = useRef<HTMLButtonElement>(null);
  useEffect(() => {
    const before = document.activeElement;
    ref.current?.focus();
    return () => before instanceof HTMLElement && before.focus();
  }, []);
  return (
    <div class="veil" onClick={(event) => event.target === event.currentTarget && close()}>
      <div class="dialog" role="dialog" aria-modal="true" aria-label="Keys">
        <div class="row"><h2>Keys</h2><span class="grow" /><button ref={ref} type="button" class="quiet" onClick={close} aria-label="Close">✕</button></div>
        <dl class="keys">
          {KEYS.map(([keys, what]) => (
            <div key={keys}><dt>{keys.split(/\s+/).map((key) => <kbd key={key}>{key}</kbd>)}</dt><dd>{what}</dd></div>
          ))}
        </dl>
        <p class="dim">On a plot: drag to zoom, shift-drag or two fingers to pan, double click to reset; the wheel zooms a plot that was clicked, or with Ctrl.</p>
      </div>
    </div>
  );
}
