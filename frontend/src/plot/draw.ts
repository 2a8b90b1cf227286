// Draws a plot on a canvas. It is told everything, and asks nothing of the page.

import { labels, place, ticks } from "./scale";
import type { Kind, Range, Scale } from "./scale";
import { bars, path, seen, travel } from "./series";
import type { Series } from "./series";

export interface Drawn {
  readonly series: Series;
  // What is drawn strongly, if smoothed; then the series itself is drawn faintly.
  readonly smooth: Float64Array | null;
  readonly color: string;
  readonly dashed: boolean;
}

export interface Colors { readonly ink: string; readonly soft: string; readonly line: string; readonly paper: string; readonly accent: string }

export interface Picture {
  readonly width: number;
  readonly height: number;
  readonly lines: readonly Drawn[];
  readonly x: Range;
  readonly y: Range;
  readonly xKind: Kind;
  readonly yKind: Kind;
  readonly logY: boolean;
  readonly xLabel: string;
  readonly marks: readonly { readonly x: number; readonly label: string }[];
  readonly colors: Colors;
  readonly font: string;
}

export interface Scales { readonly xs: Scale; readonly ys: Scale }

const TOP = 8;
const RIGHT = 12;
const BOTTOM = 22;

export function scales(picture: Picture, left: number): Scales {
  return {
    xs: { domain: picture.x, pixels: [left, Math.max(left + 1, picture.width - RIGHT)], log: false },
    ys: { domain: picture.y, pixels: [Math.max(TOP + 1, picture.height - BOTTOM), TOP], log: picture.logY },
  };
}

export function draw(pen: CanvasRenderingContext2D, picture: Picture): Scales {
  pen.font = picture.font;
  const rows = Math.max(2, Math.floor((picture.height - TOP - BOTTOM) / 32));
  const yTicks = ticks(picture.y, rows, picture.yKind, picture.logY);
  const yLabels = labels(yTicks, picture.yKind);
  const left = Math.ceil(Math.max(28, ...yLabels.map((label) => pen.measureText(label).width + 10)));
  const made = scales(picture, left);
  axes(pen, picture, made, yTicks, yLabels);
  pen.save();
  pen.beginPath();
  pen.rect(left, TOP - 2, made.xs.pixels[1] - left, made.ys.pixels[0] - TOP + 4);
  pen.clip();
  marks(pen, picture, made);
  for (const line of picture.lines) band(pen, line, made);
  for (const line of picture.lines) stroke(pen, line, made);
  pen.restore();
  return made;
}

function axes(pen: CanvasRenderingContext2D, picture: Picture, { xs, ys }: Scales, yTicks: number[], yLabels: string[]): void {
  const { colors } = picture;
  pen.lineWidth = 1;
  pen.strokeStyle = colors.line;
  pen.fillStyle = colors.soft;
  pen.textAlign = "right";
  pen.textBaseline = "middle";
  pen.beginPath();
  yTicks.forEach((value, index) => {
    const y = Math.round(place(ys, value)) + 0.5;
    pen.moveTo(xs.pixels[0], y);
    pen.lineTo(xs.pixels[1], y);
    pen.fillText(yLabels[index] ?? "", xs.pixels[0] - 6, y);
  });
  pen.stroke();
  pen.textBaseline = "alphabetic";
  const bottom = picture.height - 6;
  const labelWidth = picture.xLabel === "" ? 0 : pen.measureText(picture.xLabel).width + 10;
  const room = xs.pixels[1] - xs.pixels[0];
  const xTicks = ticks(xs.domain, Math.max(2, Math.floor(room / 76)), picture.xKind);
  const xLabels = labels(xTicks, picture.xKind);
  pen.textAlign = "center";
  let until = -Infinity;
  xTicks.forEach((value, index) => {
    const x = place(xs, value);
    const label = xLabels[index] ?? "";
    const half = pen.measureText(label).width / 2;
    const at = Math.min(x, picture.width - half - 2);
    if (at - half < until || at + half > picture.width - 2 - labelWidth) return;
    until = at + half + 8;
    pen.fillText(label, at, bottom);
  });
  if (labelWidth > 0) {
    pen.textAlign = "right";
    pen.fillText(picture.xLabel, picture.width - 2, bottom);
  }
}

function marks(pen: CanvasRenderingContext2D, picture: Picture, { xs, ys }: Scales): void {
  if (picture.marks.length === 0) return;
  pen.save();
  pen.strokeStyle = picture.colors.soft;
  pen.globalAlpha = 0.55;
  pen.setLineDash([3, 3]);
  pen.lineWidth = 1;
  pen.textAlign = "left";
  pen.textBaseline = "top";
  pen.fillStyle = picture.colors.soft;
  let free = -Infinity;
  for (const mark of picture.marks) {
    if (mark.x < xs.domain[0] || mark.x > xs.domain[1]) continue;
    const x = Math.round(place(xs, mark.x)) + 0.5;
    pen.beginPath();
    pen.moveTo(x, ys.pixels[0]);
    pen.lineTo(x, ys.pixels[1]);
    pen.stroke();
    if (mark.label === "" || x < free) continue;
    pen.fillText(mark.label, x + 3, TOP);
    free = x + pen.measureText(mark.label).width + 8;
  }
  pen.restore();
}

function band(pen: CanvasRenderingContext2D, line: Drawn, { xs, ys }: Scales): void {
  const { low, high } = line.series;
  if (low === null || high === null) return;
  const bottom = ys.log ? positive(low, line.series.y) : low;
  const lows = path(line.series, xs, ys, bottom);
  const highs = path(line.series, xs, ys, high);
  pen.beginPath();
  // Where both have their gaps, pieces between them are closed, each for itself.
  let at = 0;
  let other = 0;
  while (at < highs.length && other < lows.length) {
    let end = at;
    while (end < highs.length && !Number.isNaN(highs[end])) end += 2;
    let until = other;
    while (until < lows.length && !Number.isNaN(lows[until])) until += 2;
    for (let index = at; index < end; index += 2) {
      if (index === at) pen.moveTo(highs[index] as number, highs[index + 1] as number);
      else pen.lineTo(highs[index] as number, highs[index + 1] as number);
    }
    for (let index = until - 2; index >= other; index -= 2) pen.lineTo(lows[index] as number, lows[index + 1] as number);
    pen.closePath();
    at = end + 2;
    other = until + 2;
  }
  pen.globalAlpha = line.smooth === null ? 0.18 : 0.1;
  pen.fillStyle = line.color;
  pen.fill();
  pen.globalAlpha = 1;
}

function positive(low: Float64Array, y: Float64Array): Float64Array {
  return low.map((value, index) => (value > 0 ? value : (y[index] as number)));
}

function stroke(pen: CanvasRenderingContext2D, line: Drawn, made: Scales): void {
  pen.strokeStyle = line.color;
  pen.lineJoin = "bevel";
  pen.setLineDash(line.dashed ? [5, 4] : []);
  if (line.smooth !== null) {
    pen.globalAlpha = 0.28;
    pen.lineWidth = 1;
    ink(pen, line, made, line.series.y);
    pen.globalAlpha = 1;
  }
  pen.lineWidth = 1.6;
  ink(pen, line, made, line.smooth ?? line.series.y);
  pen.setLineDash([]);
}

// A line, stroked; or, where it fills its columns, in bars.
function ink(pen: CanvasRenderingContext2D, line: Drawn, { xs, ys }: Scales, values: Float64Array): void {
  const way = path(line.series, xs, ys, values);
  const wide = xs.pixels[1] - xs.pixels[0];
  const [first, end] = seen(line.series.x, xs.domain);
  if (line.dashed || end - first < 2 * wide || travel(way) < 6 * wide) return along(pen, way);
  pen.fillStyle = line.color;
  const made = bars(way);
  for (let index = 0; index < made.length; index += 3) {
    // Whole pixels, which need no blending.
    const top = Math.round((made[index + 1] as number) - 0.8);
    pen.fillRect(made[index] as number, top, 1, Math.max(2, Math.round((made[index + 2] as number) + 0.8) - top));
  }
}

function along(pen: CanvasRenderingContext2D, way: Float64Array): void {
  pen.beginPath();
  let up = true;
  for (let index = 0; index < way.length; index += 2) {
    const x = way[index] as number;
    const y = way[index + 1] as number;
    if (Number.isNaN(x)) {
      up = true;
      continue;
    }
    if (!up) {
      pen.lineTo(x, y);
      continue;
    }
    pen.moveTo(x, y);
    up = false;
    // A point that stands alone would not be seen as a line.
    if (index + 2 >= way.length || Number.isNaN(way[index + 2] as number)) {
      pen.moveTo(x + 2, y);
      pen.arc(x, y, 2, 0, 7);
    }
  }
  pen.stroke();
}
