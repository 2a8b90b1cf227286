// Data embedded in the page of a report. The format is described in `_dashboard/__init__.py`.

import type { LogLine, LogPage, Points, ReportData, Summary } from "./api";
import type { LogQuery, MetricsQuery, Source } from "./source";

export function embeddedSource(text: string): Source {
  return reportSource(JSON.parse(text) as ReportData);
}

export function reportSource(report: ReportData): Source {
  const never = () => Promise.reject(new Error("A report is a snapshot of one run and accepts no requests."));
  return {
    fixed: true,
    cut: report.cut ?? [],
    about: () => Promise.resolve({ ...report.about, control: false }),
    runs: () => Promise.resolve<readonly Summary[]>([report.detail.summary]),
    run: () => Promise.resolve(report.detail),
    metrics: (_id, query) => Promise.resolve(query.names.map((name) => selectPoints(report, name, query))),
    use: () => Promise.resolve(report.use),
    logs: (_id, query) => Promise.resolve(selectLines(report, query)),
    diff: never,
    search: () => (report.search ? Promise.resolve(report.search) : never()),
    follow: () => () => undefined,
    stop: never,
    stacks: never,
    profile: never,
    csvUrl: () => null,
    fileUrl: () => null,
    reportUrl: () => null,
  };
}

const NOTHING: Omit<Points, "name"> = { x: [], y: [], low: [], high: [], num_points: 0, whole: true };

function selectPoints(report: ReportData, name: string, query: MetricsQuery): Points {
  const all = (report.points[query.x] ?? []).find((points) => points.name === name);
  if (all === undefined) return { name, ...NOTHING };
  if (query.range === null) return all;
  const [from, to] = query.range;
  // One more on each side, so that the line reaches the edge.
  const first = Math.max(0, all.x.findIndex((x) => x >= from) - 1);
  const after = all.x.findIndex((x) => x > to);
  const end = after < 0 ? all.x.length : after + 1;
  if (all.x.length === 0 || (all.x.at(-1) ?? 0) < from) return { name, ...NOTHING };
  const cut = <T>(list: readonly T[]): T[] => list.slice(first, end);
  return { ...all, x: cut(all.x), y: cut(all.y), low: cut(all.low), high: cut(all.high) };
}

function selectLines(report: ReportData, query: LogQuery): LogPage {
  const log = report.logs.find((log) => log.attempt === query.attempt && log.rank === query.rank)?.page;
  if (log === undefined) return { lines: [], before: null, after: 0, num_bytes: 0 };
  const limit = query.limit ?? 500;
  const search = query.search?.toLowerCase() ?? "";
  const matching = log.lines.filter((line: LogLine) => line.text.toLowerCase().includes(search)
    && (query.before === undefined || line.offset < query.before) && (query.after === undefined || line.offset >= query.after));
  const lines = query.after === undefined ? matching.slice(-limit) : matching.slice(0, limit);
  const isFirst = lines.length === 0 || lines[0] === matching[0];
  const last = lines.at(-1);
  const next = last === undefined ? log.after : (log.lines[log.lines.indexOf(last) + 1]?.offset ?? log.after);
  return { lines, before: isFirst ? null : (lines[0]?.offset ?? null), after: next, num_bytes: log.num_bytes };
}
