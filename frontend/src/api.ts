// What the server sends. Generated from the structs in Python by frontend/api_types.py: do not edit.

export type State = "starting" | "running" | "waiting" | "stopping" | "validating" | "finished" | "failed" | "stopped" | "preempted" | "lost";
export type WorkerState = "starting" | "running" | "hangs" | "returned" | "failed" | "gone";
export type Value = number | string | boolean | null;
export type Tree = Readonly<Record<string, unknown>>;

export interface AboutAnswer {
  readonly version: string;
  readonly root: string;
  readonly control: boolean;
  readonly now: number;
}

export interface Attempt {
  readonly number: number;
  readonly began_at: number;
  readonly ended_at: number | null;
  readonly size: number;
  readonly resumed_from: string | null;
  readonly ending: string;
  readonly first_report: number;
  readonly last_report: number;
  readonly failures: readonly ShownFailure[];
  readonly hangs: readonly ShownHang[];
  readonly workers: readonly Worker[];
}

export interface BestMetric {
  readonly metric: string;
  readonly mode: "min" | "max";
  readonly value: number;
  readonly step: number;
}

export interface CodeChange {
  readonly file: string;
  readonly diff: string;
}

export interface Diff {
  readonly a: Summary;
  readonly b: Summary;
  readonly config: readonly ValueChange[];
  readonly scaling: readonly ValueChange[];
  readonly environment: readonly ValueChange[];
  readonly code: readonly CodeChange[];
  readonly metrics: readonly ValueChange[];
}

export interface LogFile {
  readonly attempt: number;
  readonly rank: number;
  readonly path: string;
  readonly num_bytes: number;
  readonly name: string;
}

export interface LogLine {
  readonly offset: number;
  readonly text: string;
}

export interface LogPage {
  readonly lines: readonly LogLine[];
  readonly before: number | null;
  readonly after: number;
  readonly num_bytes: number;
}

export interface PaceEstimate {
  readonly reports_per_s: number | null;
  readonly steps_per_s: number | null;
  readonly epochs_per_s: number | null;
  readonly progress: number | null;
  readonly left_s: number | null;
  readonly kind: "epoch" | "step" | "iteration" | null;
  readonly done: number | null;
  readonly goal: number | null;
}

export interface Points {
  readonly name: string;
  readonly x: readonly number[];
  readonly y: readonly (number | null)[];
  readonly low: readonly (number | null)[];
  readonly high: readonly (number | null)[];
  readonly num_points: number;
  readonly whole: boolean;
}

export interface ReportData {
  readonly about: AboutAnswer;
  readonly detail: RunSnapshot;
  readonly points: Readonly<Record<string, readonly Points[]>>;
  readonly use: readonly UsageSeries[];
  readonly logs: readonly ReportLog[];
  readonly search: SearchDetail | null;
  readonly cut: readonly string[];
}

export interface ReportLog {
  readonly attempt: number;
  readonly rank: number;
  readonly page: LogPage;
}

export interface RunSnapshot {
  readonly summary: Summary;
  readonly pace: PaceEstimate;
  readonly attempts: readonly Attempt[];
  readonly checkpoints: readonly ShownCheckpoint[];
  readonly spent: TimeBreakdown;
  readonly saves: SaveBreakdown | null;
  readonly stages: readonly ShownStage[];
  readonly limited_by: string | null;
  readonly metric_names: readonly string[];
  readonly config: Tree;
  readonly scaling: Tree;
  readonly run_config: Tree;
  readonly environment: Tree;
  readonly code: Tree;
  readonly logs: readonly LogFile[];
  readonly files: readonly ShownFile[];
  readonly timeline: readonly TimelineEntry[];
  readonly version: number;
}

export interface SaveBreakdown {
  readonly num_saves: number;
  readonly copy_s: number;
  readonly write_s: number;
  readonly hash_s: number;
  readonly sync_s: number;
  readonly upload_s: number;
  readonly commit_s: number;
  readonly num_bytes: number;
  readonly disk_bytes_per_s: number | null;
  readonly best_bytes_per_s: number | null;
}

export interface SearchDetail {
  readonly summary: Summary;
  readonly metric: string | null;
  readonly mode: string | null;
  readonly trials: readonly Summary[];
  readonly configs: Readonly<Record<string, Tree>>;
  readonly parallel: Tree | null;
  readonly importance: Tree | null;
  readonly curves: Tree | null;
}

export interface ShownCheckpoint {
  readonly name: string;
  readonly seq: number;
  readonly attempt: number;
  readonly path: string;
  readonly num_bytes: number;
  readonly at: number;
  readonly status: string;
  readonly kept: boolean;
  readonly is_best: boolean;
  readonly is_latest: boolean;
  readonly metrics: Readonly<Record<string, Value>>;
}

export interface ShownFailure {
  readonly rank: number;
  readonly kind: string;
  readonly message: string;
  readonly at: number;
  readonly host: string;
  readonly pid: number;
  readonly frames: readonly string[];
  readonly traceback: string;
  readonly is_cause: boolean;
}

export interface ShownFile {
  readonly kind: string;
  readonly path: string;
  readonly rank: number;
  readonly at: number;
  readonly seconds: number;
  readonly num_bytes: number;
}

export interface ShownGpu {
  readonly index: number;
  readonly used_bytes: number;
  readonly total_bytes: number;
  readonly busy: number | null;
}

export interface ShownHang {
  readonly rank: number;
  readonly verdict: string;
  readonly action: string;
  readonly at: number;
  readonly passed_after_s: number | null;
  readonly stacks: string | null;
}

export interface ShownStage {
  readonly dataset: string;
  readonly name: string;
  readonly num_rows: number;
  readonly num_bytes: number;
  readonly busy_s: number;
  readonly waited_for_input_s: number;
  readonly waited_for_room_s: number;
  readonly limits: boolean;
}

export interface Summary {
  readonly id: string;
  readonly name: string;
  readonly path: string;
  readonly kind: "run" | "search" | "trial";
  readonly state: State;
  readonly began_at: number;
  readonly ended_at: number | null;
  readonly updated_at: number;
  readonly attempt: number;
  readonly num_workers: number;
  readonly num_reports: number;
  readonly num_checkpoints: number;
  readonly num_failures: number;
  readonly metrics: Readonly<Record<string, Value>>;
  readonly best: BestMetric | null;
  readonly progress: number | null;
  readonly left_s: number | null;
  readonly steps_per_s: number | null;
  readonly epochs_per_s: number | null;
  readonly failure: string | null;
  readonly hang: string | null;
  readonly search: string | null;
}

export interface TimeBreakdown {
  readonly wall_s: number;
  readonly starting_s: number;
  readonly data_s: number;
  readonly compute_s: number;
  readonly report_s: number;
  readonly checkpoint_s: number;
  readonly between_s: number;
}

export interface TimelineEntry {
  readonly at: number;
  readonly kind: "driver" | "attempt" | "checkpoint" | "failure" | "hang" | "preemption" | "stop" | "resize" | "end" | "other";
  readonly text: string;
  readonly attempt: number;
  readonly rank: number | null;
}

export interface UsageSeries {
  readonly rank: number;
  readonly attempt: number;
  readonly at: readonly number[];
  readonly cpu: readonly number[];
  readonly rss_bytes: readonly number[];
  readonly gpu_used_bytes: readonly (readonly number[])[];
  readonly gpu_busy: readonly (readonly (number | null)[])[];
}

export interface ValueChange {
  readonly key: string;
  readonly a: unknown;
  readonly b: unknown;
}

export interface Worker {
  readonly rank: number;
  readonly state: WorkerState;
  readonly pid: number;
  readonly host: string;
  readonly device: string;
  readonly num_reports: number;
  readonly cpu: number | null;
  readonly rss_bytes: number | null;
  readonly gpus: readonly ShownGpu[];
  readonly failure: string | null;
}
