// The metrics of one run, as plots that grow during the run.

import { useCallback, useMemo } from "preact/hooks";
import { Charts } from "./charts";
import { lineColor } from "./plot/colors";
import type { ViewProps } from "./tabs";

export function Metrics({ source, detail, last, query, set }: ViewProps) {
  const { summary } = detail;
  const runs = useMemo(() => [{ id: summary.id, name: summary.name, color: lineColor(0), dashed: false, last }], [summary.id, summary.name, last]);
  const starts = detail.attempts.slice(1).map((attempt) => [attempt.number, attempt.first_report, attempt.began_at - summary.began_at] as const);
  const marks = useCallback((x: "step" | "time") => starts
    .filter(([, step]) => x === "time" || step > 0)
    .map(([number, step, time]) => ({ x: x === "time" ? time : step, label: `attempt ${number}` })), [JSON.stringify(starts)]);
  return <Charts source={source} title={summary.name} runs={runs} names={detail.metric_names} marks={marks} query={query} set={set} />;
}
