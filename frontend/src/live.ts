// Values from the server that this page came from. Its cookie says who asks; addresses carry no token.

import type { About, Detail, Diff, LogPage, Points, SearchDetail, Summary, UsageSeries } from "./api";
import type { LogQuery, MetricsQuery, Source, Told } from "./source";

export class Refused extends Error {
  constructor(readonly status: number, message: string) {
    super(message);
    this.name = "Refused";
  }
}

type Params = Readonly<Record<string, string | number | readonly string[] | null | undefined>>;

export function address(path: string, params: Params = {}): string {
  const made = new URLSearchParams();
  for (const [key, value] of Object.entries(params)) {
    if (value === null || value === undefined) continue;
    for (const each of typeof value === "string" || typeof value === "number" ? [String(value)] : value) made.append(key, each);
  }
  const query = made.toString();
  return `api/${path}${query === "" ? "" : `?${query}`}`;
}

async function answered(response: Response): Promise<unknown> {
  const text = await response.text();
  let value: unknown = null;
  try {
    value = JSON.parse(text);
  } catch {
    if (response.ok) throw new Refused(response.status, `the server sent something that is not JSON: ${text.slice(0, 200)}`);
  }
  if (response.ok) return value;
  const told = typeof value === "object" && value !== null ? (value as { error?: unknown }).error : null;
  throw new Refused(response.status, typeof told === "string" ? told : `${response.status} ${response.statusText}`);
}

async function got<T>(path: string, params?: Params): Promise<T> {
  return (await answered(await fetch(address(path, params), { headers: { accept: "application/json" } }))) as T;
}

async function posted<T>(path: string, params: Params, body: object): Promise<T> {
  // The last no form of another page can send.
  const headers = { "content-type": "application/json", accept: "application/json", "x-paceline": "1" };
  return (await answered(await fetch(address(path, params), { method: "POST", headers, body: JSON.stringify(body) }))) as T;
}

// One stream of events for the whole page, since browsers allow six connections to a server over all windows: of all
// runs, and of the run that was followed last. None while nobody looks at the page.
class Stream {
  private readonly listeners = new Map<Told, string | undefined>();
  private events: EventSource | null = null;
  private id: string | undefined;
  private timer: ReturnType<typeof setTimeout> | undefined;

  constructor() {
    document.addEventListener("visibilitychange", () => this.adapt());
  }

  add(told: Told, id: string | undefined): void {
    this.listeners.set(told, id);
    this.later(0);
  }

  remove(told: Told): void {
    this.listeners.delete(told);
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
    events.addEventListener("open", () => this.tell((told) => told.connected?.(true)));
    events.addEventListener("error", () => {
      this.tell((told) => told.connected?.(false));
      // A browser gives up for good after an answer that is not a stream, as while a server starts again.
      if (events.readyState !== EventSource.CLOSED || this.events !== events) return;
      this.events = null;
      this.later(2000);
    });
    this.on<{ runs: readonly Summary[]; gone?: readonly string[] }>("runs", (told, data) => told.runs?.(data.runs, data.gone ?? []));
    this.on<Detail>("run", (told, data, mine) => mine && told.run?.(data));
    this.on<{ last: number }>("points", (told, data, mine) => mine && told.points?.(data.last));
  }

  private on<T>(name: string, tell: (told: Told, data: T, mine: boolean) => void): void {
    const id = this.id;
    this.events?.addEventListener(name, (event) => {
      const data = JSON.parse((event as MessageEvent<string>).data) as T;
      for (const [told, of] of [...this.listeners]) tell(told, data, of !== undefined && of === id);
    });
  }

  private tell(each: (told: Told) => void): void {
    for (const told of [...this.listeners.keys()]) each(told);
  }
}

export function live(): Source {
  const stream = new Stream();
  return {
    fixed: false,
    cut: [],
    about: () => got<About>("about"),
    runs: async () => (await got<{ runs: readonly Summary[] }>("runs")).runs,
    run: (id) => got<Detail>("run", { run: id }),
    metrics: async (id: string, asked: MetricsQuery) => {
      const [from, to] = asked.range ?? [null, null];
      const params = { run: id, name: asked.names, x: asked.x, from, to, points: Math.round(asked.points) };
      return (await got<{ series: readonly Points[] }>("metrics", params)).series;
    },
    use: async (id) => (await got<{ ranks: readonly UsageSeries[] }>("use", { run: id })).ranks,
    logs: (id: string, asked: LogQuery) => got<LogPage>("logs", { run: id, ...asked }),
    diff: (a, b) => got<Diff>("diff", { a, b }),
    search: (id, metric, mode) => got<SearchDetail>("search", { run: id, metric, mode }),
    follow(told: Told, id?: string) {
      stream.add(told, id);
      return () => stream.remove(told);
    },
    stop: async (id, now) => (await posted<{ text: string }>("stop", { run: id }, { now })).text,
    stacks: async (id) => (await posted<{ text: string }>("stacks", { run: id }, {})).text,
    profile: async (id, seconds, rank) => (await posted<{ text: string }>("profile", { run: id }, { seconds, rank })).text,
    csvUrl: (id, names) => address("metrics.csv", { run: id, name: names }),
    fileUrl: (id, path) => address("file", { run: id, path }),
    reportUrl: (id) => address("report", { run: id }),
  };
}
