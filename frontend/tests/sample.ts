// A run as the server might tell of it: two attempts, a worker that was killed, a hang, a search. For tests.

import type { Attempt, RunSnapshot, Diff, LogPage, SearchDetail, Summary, UsageSeries, Worker } from "../src/api";
import type { Source } from "../src/source";

export const BEGAN = 1_700_000_000;
export const HOSTILE = "<img src=x onerror=\"document.title='run over'\"><script>document.title='run over'</script>";

export function summary(changed: Partial<Summary> = {}): Summary {
  return {
    id: "resnet", name: "resnet", path: "/runs/resnet", kind: "run", state: "running", began_at: BEGAN, ended_at: null, updated_at: BEGAN + 3600,
    attempt: 2, num_workers: 4, num_reports: 420, num_checkpoints: 6, num_failures: 1, metrics: { loss: 0.41, accuracy: 0.87 },
    best: { metric: "loss", mode: "min", value: 0.39, step: 400 }, progress: 0.42, left_s: 4971, steps_per_s: 0.12, epochs_per_s: null,
    failure: null, hang: null, search: null, ...changed,
  };
}

export function worker(rank: number, changed: Partial<Worker> = {}): Worker {
  return {
    rank, state: "running", pid: 4000 + rank, host: `node-${rank >> 3}`, device: `cuda:${rank % 8}`, num_reports: 420, cpu: 1.2 + rank * 0.11, rss_bytes: 3.2e9 + rank * 1e8,
    gpus: [{ index: 0, used_bytes: 31e9 + rank * 1e9, total_bytes: 80e9, busy: 0.93 - rank * 0.02 }], failure: null, ...changed,
  };
}

const TRACEBACK = `Traceback (most recent call last):
  File "/home/me/train.py", line 88, in train_fn
    loss = step(model, batch)
  File "/home/me/model.py", line 41, in step
    raise ValueError("loss is nan")
ValueError: loss is nan`;

export function attempts(): readonly Attempt[] {
  return [
    {
      number: 1, began_at: BEGAN + 4, ended_at: BEGAN + 1300, size: 4, resumed_from: null, ending: "failed", first_report: 1, last_report: 150,
      failures: [
        { rank: 0, kind: "error", message: "RuntimeError: connection closed by peer", at: BEGAN + 1296.2, host: "node-0", pid: 3990, frames: ["train.py:92 in train_fn"], traceback: TRACEBACK, is_cause: false },
        { rank: 2, kind: "memory", message: "out of memory: killed by the kernel; it used 61.2 GiB of 64 GiB, 12.4 GiB a minute ago", at: BEGAN + 1295, host: "node-0", pid: 3992, frames: ["train.py:88 in train_fn", "model.py:41 in step"], traceback: TRACEBACK, is_cause: true },
        { rank: 1, kind: "error", message: "RuntimeError: connection closed by peer", at: BEGAN + 1296, host: "node-0", pid: 3991, frames: [], traceback: "", is_cause: false },
      ],
      hangs: [], workers: [
        worker(0, { state: "failed", failure: "RuntimeError: connection closed by peer" }), worker(1, { state: "failed" }),
        worker(2, { state: "failed", failure: "out of memory: killed by the kernel; it used 61.2 GiB of 64 GiB, 12.4 GiB a minute ago" }), worker(3, { state: "gone" }),
      ],
    },
    {
      number: 2, began_at: BEGAN + 1340, ended_at: null, size: 4, resumed_from: "checkpoint_000140", ending: "", first_report: 141, last_report: 420, failures: [],
      hangs: [{ rank: 3, verdict: "rank 3 has not reported for 62 s; ranks 0, 1, 2 wait for it in all_reduce. It is in data.py:31 in fetch, in a read.", action: "nothing is done: hang_action='warn'", at: BEGAN + 2100, passed_after_s: 71, stacks: "stacks/attempt-2-hang-1.txt" }],
      workers: [worker(0), worker(1), worker(2, { state: "hangs" }), worker(3)],
    },
  ];
}

export function detail(changed: Partial<RunSnapshot> = {}): RunSnapshot {
  const checkpoints = [1, 2, 3, 4, 5, 6].map((index) => ({
    name: `checkpoint_${String(index * 70).padStart(6, "0")}`, seq: index * 70, attempt: index < 3 ? 1 : 2, path: `/runs/resnet/checkpoints/checkpoint_${String(index * 70).padStart(6, "0")}`,
    num_bytes: 97_517_568, at: BEGAN + index * 560, status: index === 5 ? "VALIDATED" : "COMMITTED", kept: index > 3, is_best: index === 5, is_latest: index === 6,
    metrics: { loss: 0.9 - index * 0.08, accuracy: 0.5 + index * 0.06 },
  }));
  return {
    summary: summary(), attempts: attempts(), checkpoints,
    pace: { reports_per_s: 0.1, steps_per_s: 0.1, epochs_per_s: null, progress: null, left_s: null, kind: null, done: null, goal: null },
    spent: { wall_s: 3600, starting_s: 180, data_s: 1476, compute_s: 1656, report_s: 36, checkpoint_s: 144, between_s: 108 },
    saves: { num_saves: 6, copy_s: 0.02, write_s: 0.11, hash_s: 0.03, sync_s: 0.004, upload_s: 0, commit_s: 0.002, num_bytes: 97_517_568, disk_bytes_per_s: 8.5e8, best_bytes_per_s: 1.1e9 },
    stages: [
      { dataset: "train", name: "read(s3://images)", num_rows: 1_281_167, num_bytes: 148e9, busy_s: 900, waited_for_input_s: 0, waited_for_room_s: 2400, limits: false },
      { dataset: "train", name: "map(decode)", num_rows: 1_240_000, num_bytes: 744e9, busy_s: 3300, waited_for_input_s: 12, waited_for_room_s: 30, limits: true },
      { dataset: "train", name: "batch(256)", num_rows: 1_239_040, num_bytes: 743e9, busy_s: 210, waited_for_input_s: 3100, waited_for_room_s: 20, limits: false },
    ],
    limited_by: "map(decode)", metric_names: ["loss", "accuracy"],
    config: { lr: 0.1, momentum: 0.9, epochs: 90, nesterov: true, model: { name: "resnet50", width: 64, layers: [3, 4, 6, 3] }, augment: null, "1e3": "1e3" },
    scaling: { num_workers: 4, use_gpu: true, resources_per_worker: { CPU: 8, GPU: 1 } }, run_config: { name: "resnet", failures: { max_failures: 3 } },
    environment: { python: "3.12.4", platform: "Linux 6.8 x86_64", packages: { torch: "2.7.1", numpy: "2.1.0", paceline: "0.8.0" }, cuda: "12.8", gpus: ["H200", "H200", "H200", "H200"] },
    code: { script: "train.py", function: "train_fn", git: { commit: "6ba7b8109dad11d180b400c04fd430c8a1b2c3d4", branch: "main", dirty: true }, sources: { "train.py": "import paceline\n\n\ndef train_fn(config):\n    for step in range(config[\"steps\"]):\n        paceline.train.report({\"loss\": 1 / (step + 1)})\n" } },
    logs: [1, 2].flatMap((attempt) => [0, 1, 2, 3].map((rank) => ({ attempt, rank, path: `logs/${attempt}-${rank}.log`, num_bytes: 200_000, name: `attempt ${attempt}, rank ${rank}` }))),
    files: [
      { kind: "flame", path: "profiles/1/rank-0.html", rank: 0, at: BEGAN + 3000, seconds: 10, num_bytes: 120_000 },
      { kind: "trace", path: "profiles/1/rank-0.json.gz", rank: 0, at: BEGAN + 3000, seconds: 10, num_bytes: 4_200_000 },
      { kind: "stacks", path: "stacks/1.txt", rank: 0, at: BEGAN + 2100, seconds: 0, num_bytes: 9_000 },
    ],
    timeline: [
      { at: BEGAN, kind: "driver", text: "a driver began on node-0", attempt: 0, rank: null },
      { at: BEGAN + 4, kind: "attempt", text: "attempt 1 began with 4 workers", attempt: 1, rank: null },
      ...checkpoints.slice(0, 2).map((each) => ({ at: each.at, kind: "checkpoint" as const, text: `${each.name} was committed`, attempt: 1, rank: null })),
      { at: BEGAN + 1295, kind: "failure", text: "rank 2 was killed by the kernel, out of memory", attempt: 1, rank: 2 },
      { at: BEGAN + 1340, kind: "attempt", text: "attempt 2 began with 4 workers", attempt: 2, rank: null },
      { at: BEGAN + 2100, kind: "hang", text: "rank 3 stands still", attempt: 2, rank: 3 },
      ...checkpoints.slice(2).map((each) => ({ at: each.at, kind: "checkpoint" as const, text: `${each.name} was committed`, attempt: 2, rank: null })),
    ],
    version: 12, ...changed,
  };
}

export function use(ranks: number, attempt = 2, samples = 200): readonly UsageSeries[] {
  return Array.from({ length: ranks }, (_, rank) => {
    const at = Array.from({ length: samples }, (_each, index) => BEGAN + 1340 + index * 10);
    return {
      rank, attempt, at, cpu: at.map((_each, index) => 1.5 + Math.sin(index / 9 + rank) * 0.4 + rank * 0.01), rss_bytes: at.map((_each, index) => 3e9 + index * 4e6 + rank * 1e8),
      gpu_used_bytes: [at.map((_each, index) => 3e10 + (index > 30 ? 8e9 : 0) + rank * 1e8)], gpu_busy: [at.map((_each, index) => (index % 40 < 3 ? 0.2 : 0.92 - (rank % 4) * 0.03))],
    };
  });
}

export function logText(lines: number): readonly string[] {
  return Array.from({ length: lines }, (_, index) => {
    if (index % 211 === 7) return `WARNING: batch ${index} was padded`;
    if (index === lines - 90) return "Traceback (most recent call last):";
    return `step ${index}: loss ${(2 / (1 + index / 100)).toFixed(4)}, ${HOSTILE.slice(0, index % 97 === 0 ? undefined : 0)} 812 images/s`;
  });
}

// As the server pages a file.
export function paged(lines: readonly string[], asked: { before?: number; after?: number; limit?: number; search?: string }): LogPage {
  let offset = 0;
  const all = lines.map((text) => { const line = { offset, text }; offset += text.length + 1; return line; });
  const limit = asked.limit ?? 500;
  const some = all.filter((line) => (asked.search === undefined || line.text.toLowerCase().includes(asked.search.toLowerCase()))
    && (asked.before === undefined || line.offset < asked.before) && (asked.after === undefined || line.offset >= asked.after));
  const page = asked.after === undefined ? some.slice(-limit) : some.slice(0, limit);
  const last = page[page.length - 1];
  const next = asked.after !== undefined && page.length < some.length && last !== undefined ? last.offset + last.text.length + 1 : asked.before ?? offset;
  return { lines: page, before: asked.after === undefined && page.length < some.length ? page[0]?.offset ?? null : asked.after !== undefined && asked.after > 0 ? asked.after : null, after: next, num_bytes: offset };
}

export function diff(): Diff {
  return {
    a: summary({ id: "a", name: "baseline", state: "finished" }), b: summary({ id: "b", name: "wider", state: "failed" }),
    config: [{ key: "lr", a: 0.1, b: 0.05 }, { key: "model/width", a: 64, b: 128 }, { key: "augment", a: null, b: HOSTILE }], scaling: [{ key: "num_workers", a: 4, b: 8 }],
    environment: [{ key: "packages/torch", a: "2.7.1", b: "2.8.0" }],
    code: [{ file: "train.py", diff: "--- a/train.py\n+++ b/train.py\n@@ -1,4 +1,5 @@\n import paceline\n-lr = 0.1\n+lr = 0.05\n+width = 128\n \n def train_fn(config):\n" }],
    metrics: [{ key: "epoch", a: 90, b: 90 }, { key: "loss", a: 0.41, b: 0.38 }, { key: "accuracy", a: 0.87, b: 0.883 }],
  };
}

export function search(trials = 40): SearchDetail {
  const configs = Array.from({ length: trials }, (_, index) => ({ lr: 10 ** (-4 + ((index * 37) % 100) / 33), width: [16, 32, 64, 128][index % 4] ?? 16, act: ["relu", "gelu", HOSTILE][index % 3] ?? "" }));
  const values = configs.map((config, index) => (index % 13 === 5 ? null : Math.abs(Math.log10(config.lr) + 2) * 0.3 + 0.2 + (128 - config.width) / 900 + (index % 7) * 0.01));
  const known = values.filter((value) => value !== null);
  const [low, high] = [Math.min(...known), Math.max(...known)];
  const ids = configs.map((_, index) => `trial_${String(index).padStart(5, "0")}`);
  const status = (index: number): string => (values[index] === null ? "ERROR" : index < 4 ? "RUNNING" : "TERMINATED");
  const best = ids[values.indexOf(low)] ?? null;
  const axis = (name: string, more: object) => ({ name, label: name, kind: "float", log: false, low: 0, high: 1, marks: [], is_cut: false, categories: [], has_gaps: false, ...more });
  return {
    summary: summary({ id: "sweep", name: "sweep", kind: "search", num_reports: trials - 4 }), metric: "loss", mode: "min",
    trials: ids.map((id, index) => summary({
      id: `sweep/${id}`, name: id, kind: "trial", search: "sweep", state: values[index] === null ? "failed" : index < 4 ? "running" : "finished", num_reports: 20 + index, ended_at: index < 4 ? null : BEGAN + 900 + index * 7,
      metrics: values[index] === null ? {} : { loss: values[index] ?? null }, failure: values[index] === null ? "ValueError: loss is nan" : null, best: null,
    })),
    configs: Object.fromEntries(ids.map((id, index) => [`sweep/${id}`, configs[index] ?? {}])),
    parallel: {
      metric: "loss", mode: "min", best,
      axes: [axis("lr", { log: true, low: 1e-4, high: 0.1 }), axis("width", { kind: "integer", low: 16, high: 128, marks: [16, 32, 64, 128] }), axis("act", { kind: "category", low: 0, high: 2, categories: ["relu", "gelu", HOSTILE] }), axis("loss", { low, high })],
      lines: ids.map((id, index) => ({
        trial_id: id, status: status(index), value: values[index] ?? null,
        points: [(Math.log10(configs[index]?.lr ?? 1e-4) + 4) / 3, ((configs[index]?.width ?? 16) - 16) / 112, (index % 3) / 2, values[index] === null ? null : ((values[index] ?? 0) - low) / (high - low)],
      })),
    },
    importance: { metric: "loss", mode: "min", parameters: [{ name: "lr", importance: 0.71 }, { name: "width", importance: 0.24 }, { name: "act", importance: 0.05 }], note: null },
    curves: {
      metric: "loss", mode: "min", best, scale: { low, high: 2, log: false, is_cut: false }, colors: { low, high, log: false, is_cut: false },
      lines: ids.map((id, index) => ({ trial_id: id, status: status(index), value: values[index] ?? null, points: Array.from({ length: 20 }, (_each, step) => [step + 1, (values[index] ?? 1.2) + 1.5 / (step + 1)]) })),
    },
  };
}

export function sampleSource(given: { detail?: RunSnapshot; ranks?: number; fixed?: boolean; control?: boolean; lines?: number } = {}): Source {
  const run = given.detail ?? detail();
  const lines = [...logText(given.lines ?? 3000)];
  return {
    fixed: given.fixed ?? false,
    cut: [],
    about: () => Promise.resolve({ version: "0.8.0", root: "/runs", control: given.control ?? true, now: BEGAN }),
    runs: () => Promise.resolve([run.summary, search().summary, ...search().trials]),
    run: () => Promise.resolve(run),
    metrics: (_id, asked) => Promise.resolve(asked.names.map((name) => {
      const x = Array.from({ length: 400 }, (_, index) => index);
      const y = x.map((at) => 2 / (1 + at / 40));
      return { name, x, y, low: y, high: y, num_points: 400, whole: true };
    })),
    use: () => Promise.resolve(use(given.ranks ?? 4)),
    logs: (_id, asked) => Promise.resolve(paged(lines, asked)),
    diff: () => Promise.resolve(diff()),
    search: () => Promise.resolve(search()),
    follow: () => () => undefined,
    stop: () => Promise.resolve("it stops at the next report"),
    stacks: () => Promise.resolve("rank 0, pid 4000\n  train.py:88 in train_fn\n  model.py:41 in step\n"),
    profile: (_id, seconds) => new Promise((done) => setTimeout(() => done("a profile was made"), seconds * 1000)),
    csvUrl: () => null,
    fileUrl: (_id, path) => `api/file?path=${path}`,
    reportUrl: () => null,
  };
}
