// Where the page gets its data: from the server, or from the file itself in a report.

import type { AboutAnswer, RunSnapshot, Diff, LogPage, Points, SearchDetail, Summary, UsageSeries } from "./api";

export interface MetricsQuery {
  readonly names: readonly string[];
  readonly x: "step" | "time";
  readonly range: readonly [number, number] | null;
  readonly points: number;
}

export interface LogQuery {
  readonly attempt: number;
  readonly rank: number;
  readonly before?: number;
  readonly after?: number;
  readonly limit?: number;
  readonly search?: string;
}

export interface SourceListener {
  // Changed runs, and the ids of removed runs.
  readonly runs?: (changed: readonly Summary[], gone: readonly string[]) => void;
  readonly run?: (detail: RunSnapshot) => void;
  readonly points?: (last: number) => void;
  // Whether the server answers.
  readonly connected?: (yes: boolean) => void;
}

export interface Source {
  // A report shows one run, and nothing changes.
  readonly fixed: boolean;
  // What a report leaves out.
  readonly cut: readonly string[];
  about(): Promise<AboutAnswer>;
  runs(): Promise<readonly Summary[]>;
  run(id: string): Promise<RunSnapshot>;
  metrics(id: string, query: MetricsQuery): Promise<readonly Points[]>;
  use(id: string): Promise<readonly UsageSeries[]>;
  logs(id: string, query: LogQuery): Promise<LogPage>;
  diff(a: string, b: string): Promise<Diff>;
  search(id: string, metric?: string, mode?: string): Promise<SearchDetail>;
  // Notifies of changes until the returned function is called. With `id`, also of all events of this run.
  follow(listener: SourceListener, id?: string): () => void;
  // Requests to a running run; they return its answer.
  stop(id: string, now: boolean): Promise<string>;
  stacks(id: string): Promise<string>;
  profile(id: string, seconds: number, rank: number | null): Promise<string>;
  // URLs for links; null in a report.
  csvUrl(id: string, names?: readonly string[]): string | null;
  fileUrl(id: string, path: string): string | null;
  reportUrl(id: string): string | null;
}
