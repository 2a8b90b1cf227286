// Data from the server of this page. A cookie authenticates; URLs carry no token.

import type { AboutAnswer, RunSnapshot, Diff, LogPage, Points, SearchDetail, Summary, UsageSeries } from "./api";
import type { LogQuery, MetricsQuery, Source, SourceListener } from "./source";

export class Refused extends Error {
  constructor(readonly status: number, message: string) {
    super(message);
    this.name = "Refused";
  }
}

type Params = Readonly<Record<string, string | number | readonly string[] | null | undefined>>;

export function address(path: string, params: Params = {}): string {
  const search = new URLSearchParams();
  for (const [key, value] of Object.entries(params)) {
    if (value === null || value === undefined) continue;
    for (const each of typeof value === "string" || typeof value === "number" ? [String(value)] : value) search.append(key, each);
  }
  const query = search.toString();
  return `api/${path}${query === "" ? "" : `?${query}`}`;
}

async function parseResponse(response: Response): Promise<unknown> {
  const text = await response.text();
  let value: unknown = null;
  try {
    value = JSON.parse(text);
  } catch {
    if (response.ok) throw new Refused(response.status, `the server sent something that is not JSON: ${text.slice(0, 200)}`);
  }
  if (response.ok) return value;
  const message = typeof value === "object" && value !== null ? (value as { error?: unknown }).error : null;
  throw new Refused(response.status, typeof message === "string" ? message : `${response.status} ${response.statusText}`);
}

async function fetchJson<T>(path: string, params?: Params): Promise<T> {
  return (await parseResponse(await fetch(address(path, params), { headers: { accept: "application/json" } }))) as T;
}

async function postJson<T>(path: string, params: Params, body: object): Promise<T> {
  // A form of another site cannot send the last header.
  const headers = { "content-type": "application/json", accept: "application/json", "x-paceline": "1" };
  return (await parseResponse(await fetch(address(path, params), { method: "POST", headers, body: JSON.stringify(body) }))) as T;
}

// One stream of events for the whole page, since browsers allow six connections to a server over all windows: of all
// runs, and of the run that was followed last. None while nobody looks at the page.
class Stream {
  private readonly listeners = new Map<SourceListener, string | undefined>();
  private events: EventSource | null = null;
  private id: string | undefined;
  private timer: ReturnType<typeof setTimeout> | undefined;

  constructor() {
    document.addEventListener("visibilitychange", () => this.adapt());
  }

  add(listener: SourceListener, id: string | undefined): void {
    this.listeners.set(listener, id);
    this.later(0);
  }

  remove(listener: SourceListener): void {
    this.listeners.delete(listener);
    this.later(0);
  }

  private later(after: number): void {
    clearTimeout(this.timer);
    this.timer = setTimeout(() => this.adapt(), after);
  }

  private adapt(): void {
    const id = [...this.listeners.values()].filter((each) => each !== undefined).at(-1);
    const wanted = this.listeners.size > 0 && !document.hidden;
    if (this.events !== null && (!wanted || id !== this.id)) {
      this.events.close();
      this.events = null;
    }
    this.id = id;
    if (wanted && this.events === null) this.open();
  }

  private open(): void {
    const events = new EventSource(address("events", { run: this.id }));
    this.events = events;
    events.addEventListener("open", () => this.notify((listener) => listener.connected?.(true)));
    events.addEventListener("error", () => {
      this.notify((listener) => listener.connected?.(false));
      // A browser gives up after an answer that is not a stream, as while a server restarts.
      if (events.readyState !== EventSource.CLOSED || this.events !== events) return;
      this.events = null;
      this.later(2000);
    });
    this.on<{ runs: readonly Summary[]; gone?: readonly string[] }>("runs", (listener, data) => listener.runs?.(data.runs, data.gone ?? []));
    this.on<RunSnapshot>("run", (listener, data, mine) => mine && listener.run?.(data));
    this.on<{ last: number }>("points", (listener, data, mine) => mine && listener.points?.(data.last));
  }

  private on<T>(name: string, notify: (listener: SourceListener, data: T, mine: boolean) => void): void {
    const id = this.id;
    this.events?.addEventListener(name, (event) => {
      const data = JSON.parse((event as MessageEvent<string>).data) as T;
      for (const [listener, of] of [...this.listeners]) notify(listener, data, of !== undefined && of === id);
    });
  }

  private notify(each: (listener: SourceListener) => void): void {
    for (const listener of [...this.listeners.keys()]) each(listener);
  }
}

export function liveSource(): Source {
  const stream = new Stream();
  return {
    fixed: false,
    cut: [],
    about: () => fetchJson<AboutAnswer>("about"),
    runs: async () => (await fetchJson<{ runs: readonly Summary[] }>("runs")).runs,
    run: (id) => fetchJson<RunSnapshot>("run", { run: id }),
    metrics: async (id: string, query: MetricsQuery) => {
      const [from, to] = query.range ?? [null, null];
      const params = { run: id, name: query.names, x: query.x, from, to, points: Math.round(query.points) };
      return (await fetchJson<{ series: readonly Points[] }>("metrics", params)).series;
    },
    use: async (id) => (await fetchJson<{ ranks: readonly UsageSeries[] }>("use", { run: id })).ranks,
    logs: (id: string, query: LogQuery) => fetchJson<LogPage>("logs", { run: id, ...query }),
    diff: (a, b) => fetchJson<Diff>("diff", { a, b }),
    search: (id, metric, mode) => fetchJson<SearchDetail>("search", { run: id, metric, mode }),
    follow(listener: SourceListener, id?: string) {
      stream.add(listener, id);
      return () => stream.remove(listener);
    },
    stop: async (id, now) => (await postJson<{ text: string }>("stop", { run: id }, { now })).text,
    stacks: async (id) => (await postJson<{ text: string }>("stacks", { run: id }, {})).text,
    profile: async (id, seconds, rank) => (await postJson<{ text: string }>("profile", { run: id }, { seconds, rank })).text,
    csvUrl: (id, names) => address("metrics.csv", { run: id, name: names }),
    fileUrl: (id, path) => address("file", { run: id, path }),
    reportUrl: (id) => address("report", { run: id }),
  };
}
