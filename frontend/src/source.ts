// Where the page gets its values: from the server, or, in a report that is one file, from what lies in it.

import type { About, Detail, Diff, LogPage, Points, SearchDetail, Summary, UsageSeries } from "./api";

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

export interface Told {
  // Those that changed, and the ids of those that are no more.
  readonly runs?: (changed: readonly Summary[], gone: readonly string[]) => void;
  readonly run?: (detail: Detail) => void;
  readonly points?: (last: number) => void;
  // Whether the server answers.
  readonly connected?: (yes: boolean) => void;
}

export interface Source {
  // A report shows one run, and nothing changes.
  readonly fixed: boolean;
  // What a report leaves out.
  readonly cut: readonly string[];
  about(): Promise<About>;
  runs(): Promise<readonly Summary[]>;
  run(id: string): Promise<Detail>;
  metrics(id: string, asked: MetricsQuery): Promise<readonly Points[]>;
  use(id: string): Promise<readonly UsageSeries[]>;
  logs(id: string, asked: LogQuery): Promise<LogPage>;
  diff(a: string, b: string): Promise<Diff>;
  search(id: string, metric?: string, mode?: string): Promise<SearchDetail>;
  // Tell of changes until the function that this returns is called. `id`: also of all that happens to this run.
  follow(told: Told, id?: string): () => void;
  // Asks of a run that goes on; what was answered.
  stop(id: string, now: boolean): Promise<string>;
  stacks(id: string): Promise<string>;
  profile(id: string, seconds: number, rank: number | null): Promise<string>;
  // Addresses, for links; null in a report.
  csvUrl(id: string, names?: readonly string[]): string | null;
  fileUrl(id: string, path: string): string | null;
  reportUrl(id: string): string | null;
}
