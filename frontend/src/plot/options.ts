// The options of uPlot for a plot: its lines, scales and axes, in the page's own colours. What may change during the
// life of a plot is read when it is drawn.

import uPlot from "uplot";
import { resolveColor } from "./colors";
import { labels, steps } from "./labels";
import type { Kind } from "./labels";
import { padRange } from "./range";
import type { Range } from "./range";
import type { Column, Table } from "./table";
import type { PlotProps } from "./types";

export const FONT = '11px -apple-system, "Segoe UI", Roboto, "Noto Sans", "Liberation Sans", "DejaVu Sans", system-ui, sans-serif';

export interface PlotState {
  readonly props: () => PlotProps;
  readonly range: () => Range;
  readonly table: () => Table;
}

// While this stays the same, uPlot can take new data; otherwise it is created again.
export function shapeOf(props: PlotProps, table: Table): string {
  const dashes = props.lines.map((line) => line.dashed ?? false);
  return JSON.stringify([table.columns.map(({ line, part }) => [line, part]), dashes, props.xKind, props.yKind, props.xLabel, props.logY]);
}

// `scale` enlarges everything, for an image to save.
export function options({ props, range, table }: PlotState, width: number, height: number, scale = 1): uPlot.Options {
  const { columns } = table();
  const { xKind = "number", yKind = "number", xLabel = "", logY: log = false } = props();
  const font = FONT.replace("11px", `${11 * scale}px`);
  const soft = () => resolveColor("var(--soft)");
  const axis = { stroke: soft, font, ticks: { show: false } };
  return {
    width,
    height,
    padding: [8 * scale, 16 * scale, 0, 0],
    legend: { show: false },
    cursor: { show: false },
    scales: {
      x: { time: xKind === "clock", range: () => [...range()] },
      y: { distr: log ? 3 : 1, range: (_, low, high) => [...padRange(low, high, log, props().yShows)] },
    },
    axes: [
      {
        ...axis, grid: { show: false }, space: 76 * scale, size: 20 * scale, gap: 5 * scale, values: valuesOf(xKind, false),
        incrs: steps(xKind),
        ...(xLabel === "" ? {} : { label: xLabel, labelFont: font, labelSize: 14 * scale, labelGap: 0 }),
      },
      {
        ...axis, grid: { stroke: () => resolveColor("var(--line)"), width: scale, filter: labelled }, space: (log ? 20 : 32) * scale, gap: 6 * scale, values: valuesOf(yKind, log),
        ...(log ? {} : { incrs: steps(yKind) }),
        size: (self, values) => widest(self, values, font, scale),
      },
    ],
    series: [{}, ...columns.map((_, index) => seriesOf(index, table, props, scale))],
    bands: columns.flatMap(({ part, line }, index): uPlot.Band[] => (part !== "high" ? [] : [{
      series: [index + 1, index], fill: () => colorOf(props(), line),
    }])),
    hooks: { drawClear: [(self) => drawMarks(self, props(), font, scale)] },
  };
}

function valuesOf(kind: Kind, log: boolean): uPlot.Axis.Values {
  return (_, splits: readonly (number | null)[], __, ___, step) => labels(splits, kind, step, log);
}

// On a log scale, only the lines with a label.
const labelled: uPlot.Axis.Filter = (self, splits, index, space, step) => self.axes[index]?.filter?.(self, splits, index, space, step) ?? splits;

function colorOf(props: PlotProps, line: number): string {
  return resolveColor(props.lines[line]?.color ?? "");
}

function seriesOf(index: number, table: () => Table, props: () => PlotProps, scale: number): uPlot.Series {
  const { line, part } = table().columns[index] as Column;
  const isSmooth = table().columns.some((other) => other.line === line && other.part === "faint");
  const color = () => colorOf(props(), line);
  // The unsmoothed line must not determine the y range.
  const auto = part === "main" || !isSmooth;
  if (part === "low" || part === "high") return { auto, width: 0, alpha: isSmooth ? 0.1 : 0.18, points: { show: false } };
  return {
    auto,
    stroke: color,
    width: (part === "faint" ? 1 : 1.6) * scale,
    alpha: part === "faint" ? 0.28 : 1,
    pxAlign: 0,
    paths: linePaths(table),
    ...(props().lines[line]?.dashed ? { dash: [5 * scale, 4 * scale] } : {}),
    points: {
      show: false, size: 5 * scale, width: 0, fill: color,
      filter: (self) => visibleIndices(table().columns[index]?.isolated ?? [], self.series[index + 1]?.idxs),
    },
  };
}

const linear = uPlot.paths.linear?.() as uPlot.Series.PathBuilder;

// Beyond this number of points, lines are one pixel wide, which is ten times faster without a GPU.
const WIDE = 10_000;

function linePaths(table: () => Table): uPlot.Series.PathBuilder {
  return (self, index, first, last) => {
    const stroked = table().columns.filter(({ part }) => part === "main" || part === "faint");
    const made = linear(self, index, first, last);
    const visibleShare = (last - first) / Math.max(1, self.data[0].length);
    // uPlot draws four points in a column of pixels at most.
    const num = stroked.reduce((sum, { numValues }) => sum + Math.min(numValues * visibleShare, 4 * self.bbox.width), 0);
    return made === null || num <= WIDE ? made : Object.assign(made, { _width: 1 / uPlot.pxRatio });
  };
}

function visibleIndices(indices: readonly number[], [first, last]: uPlot.Series.MinMaxIdxs = [0, 0]): number[] | null {
  const made = indices.filter((index) => index >= first && index <= last);
  return made.length === 0 ? null : made;
}

function widest(self: uPlot, values: readonly string[] | null, font: string, scale: number): number {
  self.ctx.save();
  self.ctx.font = font;
  const width = Math.max(0, ...(values ?? []).map((value) => self.ctx.measureText(value).width));
  self.ctx.restore();
  return Math.ceil(Math.max(28 * scale, width + 10 * scale));
}

// Where an attempt began: a line across, and its name.
function drawMarks(self: uPlot, { marks = [] }: PlotProps, font: string, scale: number): void {
  const { ctx: pen, bbox } = self;
  const [from, to] = [self.scales["x"]?.min ?? 0, self.scales["x"]?.max ?? 0];
  const ratio = uPlot.pxRatio;
  pen.save();
  pen.beginPath();
  pen.rect(bbox.left, bbox.top, bbox.width, bbox.height);
  pen.clip();
  pen.font = font.replace(/^[\d.]+/, String(11 * scale * ratio));
  pen.strokeStyle = pen.fillStyle = resolveColor("var(--soft)");
  pen.globalAlpha = 0.55;
  pen.setLineDash([3 * scale * ratio, 3 * scale * ratio]);
  pen.lineWidth = scale * ratio;
  pen.textAlign = "left";
  pen.textBaseline = "top";
  let free = -Infinity;
  for (const { x: at, label } of marks) {
    if (at < from || at > to) continue;
    const x = Math.round(self.valToPos(at, "x", true)) + 0.5;
    pen.beginPath();
    pen.moveTo(x, bbox.top);
    pen.lineTo(x, bbox.top + bbox.height);
    pen.stroke();
    if (label === "" || x < free) continue;
    pen.fillText(label, x + 3 * scale * ratio, bbox.top);
    free = x + pen.measureText(label).width + 8 * scale * ratio;
  }
  pen.restore();
}
