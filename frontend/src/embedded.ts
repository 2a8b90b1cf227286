// Values that lie in the page itself: of a report, which is one file. They are described in `_dashboard/__init__.py`.

import type { About, Detail, LogLine, LogPage, Points, SearchDetail, Summary, UsageSeries } from "./api";
import type { LogQuery, MetricsQuery, Source } from "./source";

export interface Report {
  readonly about: About;
  readonly detail: Detail;
  readonly points: { readonly step: readonly Points[]; readonly time: readonly Points[] };
  readonly use: readonly UsageSeries[];
  // The end of each log.
  readonly logs: readonly { readonly attempt: number; readonly rank: number; readonly page: LogPage }[];
  readonly search?: SearchDetail | null;
  // What was left out.
  readonly cut?: readonly string[];
}

export function embedded(text: string): Source {
  return reported(JSON.parse(text) as Report);
}

export function reported(report: Report): Source {
  const never = () => Promise.reject(new Error("A report is a picture of one run: nothing can be asked of it."));
  return {
    fixed: true,
    cut: report.cut ?? [],
    about: () => Promise.resolve({ ...report.about, control: false }),
    runs: () => Promise.resolve<readonly Summary[]>([report.detail.summary]),
    run: () => Promise.resolve(report.detail),
    metrics: (_id, asked) => Promise.resolve(asked.names.map((name) => chosen(report, name, asked))),
    use: () => Promise.resolve(report.use),
    logs: (_id, asked) => Promise.resolve(page(report, asked)),
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

function chosen(report: Report, name: string, asked: MetricsQuery): Points {
  const all = (report.points[asked.x] ?? []).find((points) => points.name === name);
  if (all === undefined) return { name, ...NOTHING };
  if (asked.range === null) return all;
  const [from, to] = asked.range;
  // One more on each side, so that the line goes on to the edge.
  const first = Math.max(0, all.x.findIndex((x) => x >= from) - 1);
  const after = all.x.findIndex((x) => x > to);
  const end = after < 0 ? all.x.length : after + 1;
  if (all.x.length === 0 || (all.x.at(-1) ?? 0) < from) return { name, ...NOTHING };
  const cut = <T>(list: readonly T[]): T[] => list.slice(first, end);
  return { ...all, x: cut(all.x), y: cut(all.y), low: cut(all.low), high: cut(all.high) };
}

function page(report: Report, asked: LogQuery): LogPage {
  const held = report.logs.find((log) => log.attempt === asked.attempt && log.rank === asked.rank)?.page;
  if (held === undefined) return { lines: [], before: null, after: 0, num_bytes: 0 };
  const limit = asked.limit ?? 500;
  const search = asked.search?.toLowerCase() ?? "";
  const found = held.lines.filter((line: LogLine) => line.text.toLowerCase().includes(search)
    && (asked.before === undefined || line.offset < asked.before) && (asked.after === undefined || line.offset >= asked.after));
  const lines = asked.after === undefined ? found.slice(-limit) : found.slice(0, limit);
  const isFirst = lines.length === 0 || lines[0] === found[0];
  const last = lines.at(-1);
  const next = last === undefined ? held.after : (held.lines[held.lines.indexOf(last) + 1]?.offset ?? held.after);
  return { lines, before: isFirst ? null : (lines[0]?.offset ?? null), after: next, num_bytes: held.num_bytes };
}
