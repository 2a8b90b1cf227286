// One plot on the page: what it shows now, and when it is drawn again. Lines are on one canvas, and what follows the
// pointer on another above it, so that moving the pointer draws no line.

import { forget, resolved } from "./colors";
import { joined, pointed } from "./cursor";
import { draw } from "./draw";
import type { Drawn, Picture, Scales } from "./draw";
import { between, held, panned, zoomed } from "./range";
import { place, roomy, said, valueAt } from "./scale";
import type { Range } from "./scale";
import { nearest, series, smoothed, xExtent, yExtent } from "./series";
import type { Series } from "./series";
import type { Line, PlotProps } from "./types";
import { onTheme } from "../theme";

export const FONT = '11px -apple-system, "Segoe UI", Roboto, "Noto Sans", "Liberation Sans", "DejaVu Sans", system-ui, sans-serif';

// What a drawing depends on.
const DRAWN = ["lines", "xLabel", "xKind", "yKind", "logY", "height", "smoothing", "marks", "range", "whole", "yShows"] as const;

export interface Shown { readonly x: string; readonly values: readonly string[] }

export class Chart {
  private props: PlotProps | null = null;
  private series: readonly Series[] = [];
  private smooth: readonly (Float64Array | null)[] = [];
  private readonly known = new WeakMap<Line, Series>();
  private readonly smoothedBefore = new WeakMap<Series, { readonly weight: number; readonly y: Float64Array }>();
  private view: Range | null = null;
  private toldRange: Range | null | undefined;
  private whole: Range = [0, 1];
  private drawn: Scales | null = null;
  private frame = 0;
  private stale = { lines: true, above: true };
  private cursor: number | null = null;
  private picked: Range | null = null;
  private leave: () => void = () => undefined;
  private group = "";
  private timer: ReturnType<typeof setTimeout> | undefined;
  private readonly resize: ResizeObserver;
  private readonly unTheme: () => void;

  constructor(
    private readonly below: HTMLCanvasElement,
    private readonly above: HTMLCanvasElement,
    private readonly show: (shown: Shown | null) => void,
  ) {
    this.resize = new ResizeObserver(() => this.ask({ lines: true }));
    this.resize.observe(below);
    this.unTheme = onTheme(() => (forget(), this.ask({ lines: true })));
  }

  end(): void {
    this.resize.disconnect();
    this.unTheme();
    this.leave();
    clearTimeout(this.timer);
    cancelAnimationFrame(this.frame);
  }

  // Whether there is anything to draw again.
  set(props: PlotProps): boolean {
    const before = this.props;
    this.props = props;
    if (before !== null && DRAWN.every((key) => before[key] === props[key])) return false;
    this.series = props.lines.map((line) => {
      const made = this.known.get(line) ?? series(line);
      this.known.set(line, made);
      return made;
    });
    const weight = props.smoothing ?? 0;
    this.smooth = this.series.map((each) => this.smoothedBy(each, weight));
    if (props.range !== undefined && !same(props.range, this.toldRange)) this.view = props.range;
    this.toldRange = props.range;
    const extent = props.whole ?? xExtent(this.series);
    if (extent !== null && (props.whole || this.view === null)) this.whole = extent;
    else if (extent !== null) this.whole = [Math.min(this.whole[0], extent[0]), Math.max(this.whole[1], extent[1])];
    if (!(this.whole[1] > this.whole[0])) this.whole = [this.whole[0] - 0.5, this.whole[0] + 0.5];
    const group = `${props.xKind ?? "number"} ${props.xLabel ?? ""}`;
    if (group !== this.group) {
      this.leave();
      this.group = group;
      this.leave = joined(group, (x, by) => by !== this && this.point(x));
    }
    this.ask({ lines: true });
    return true;
  }

  private smoothedBy(each: Series, weight: number): Float64Array | null {
    if (!(weight > 0)) return null;
    const held = this.smoothedBefore.get(each);
    if (held?.weight === weight) return held.y;
    const y = smoothed(each.y, weight);
    this.smoothedBefore.set(each, { weight, y });
    return y;
  }

  range(): Range {
    return this.view ?? this.whole;
  }

  // All that is needed to draw it, at a size.
  picture(width: number, height: number): Picture {
    const props = this.props ?? { title: "", lines: [] };
    const x = this.range();
    const logY = props.logY ?? false;
    const lines: Drawn[] = this.series.map((each, index) => ({
      series: each,
      smooth: this.smooth[index] ?? null,
      color: resolved(props.lines[index]?.color ?? ""),
      dashed: props.lines[index]?.dashed ?? false,
    }));
    const seen = this.series.map((each, index) => {
      const smooth = this.smooth[index];
      // A band that smoothing leaves behind would make all that one looks at flat.
      return smooth ? { ...each, y: smooth, low: null, high: null } : each;
    });
    let extent = yExtent(seen, x, logY) ?? (logY ? [0.1, 10] as const : [0, 1] as const);
    if (props.yShows !== undefined && !logY) extent = [Math.min(extent[0], props.yShows[0]), Math.max(extent[1], props.yShows[1])];
    return {
      width, height, lines, x, logY,
      y: props.yShows !== undefined && !logY ? extent : roomy(extent[0], extent[1], logY),
      xKind: props.xKind ?? "number",
      yKind: props.yKind ?? "number",
      xLabel: props.xLabel ?? "",
      marks: props.marks ?? [],
      colors: {
        ink: resolved("var(--ink)"), soft: resolved("var(--soft)"), line: resolved("var(--line)"),
        paper: resolved("var(--paper)"), accent: resolved("var(--accent)"),
      },
      font: FONT,
    };
  }

  // What a person does. Pixels are those of the plot.
  zoom(pixel: number, factor: number): void {
    if (this.drawn === null) return;
    this.look(zoomed(this.range(), valueAt(this.drawn.xs, pixel), factor, this.whole));
  }

  zoomMiddle(factor: number): void {
    const [from, to] = this.range();
    this.look(zoomed([from, to], (from + to) / 2, factor, this.whole));
  }

  pan(pixels: number): void {
    if (this.drawn === null) return;
    const { domain, pixels: [first, last] } = this.drawn.xs;
    this.look(panned(this.range(), (-pixels / (last - first)) * (domain[1] - domain[0]), this.whole));
  }

  panBy(part: number): void {
    const [from, to] = this.range();
    this.look(panned([from, to], (to - from) * part, this.whole));
  }

  pick(a: number | null, b: number): void {
    this.picked = a === null ? null : between(a, b);
    this.ask({ above: true });
  }

  take(): void {
    if (this.picked !== null && this.drawn !== null && this.picked[1] - this.picked[0] >= 4) {
      const [a, b] = this.picked;
      this.look(held([valueAt(this.drawn.xs, a), valueAt(this.drawn.xs, b)], this.whole));
    }
    this.pick(null, 0);
  }

  reset(): void {
    this.look(null);
  }

  hover(pixel: number | null): void {
    const inside = pixel !== null && this.drawn !== null && pixel >= this.drawn.xs.pixels[0] - 4 && pixel <= this.drawn.xs.pixels[1] + 4;
    const x = inside && this.drawn !== null && pixel !== null ? valueAt(this.drawn.xs, pixel) : null;
    this.point(x);
    pointed(this.group, x, this);
  }

  // The plot as text, for those who do not see it.
  told(): string {
    const props = this.props;
    if (props === null || this.series.every((each) => each.x.length === 0)) return "No points.";
    return this.series.map((each, index) => {
      const extent = yExtent([each], this.range(), false);
      const last = nearest(each, Infinity);
      const kind = props.yKind ?? "number";
      if (extent === null || last < 0) return `${props.lines[index]?.name ?? ""}: no values.`;
      return `${props.lines[index]?.name ?? ""}: from ${said(extent[0], kind)} to ${said(extent[1], kind)}, last ${said(each.y[last] as number, kind)} at ${said(each.x[last] as number, props.xKind ?? "number")}.`;
    }).join(" ");
  }

  private look(range: Range | null): void {
    if (same(range, this.view)) return;
    this.view = range;
    this.ask({ lines: true });
    clearTimeout(this.timer);
    this.timer = setTimeout(() => {
      this.toldRange = this.view;
      this.props?.onRange?.(this.view);
    }, 120);
  }

  private point(x: number | null): void {
    if (x === this.cursor) return;
    this.cursor = x;
    this.ask({ above: true });
  }

  private ask(what: { lines?: boolean; above?: boolean }): void {
    if (what.lines) this.stale.lines = true;
    this.stale.above = true;
    if (this.frame === 0) this.frame = requestAnimationFrame(() => this.paint());
  }

  private paint(): void {
    this.frame = 0;
    const width = this.below.clientWidth;
    const height = this.below.clientHeight;
    if (this.props === null || width === 0 || height === 0) return;
    if (this.stale.lines) {
      const pen = sized(this.below, width, height);
      if (pen !== null) this.drawn = draw(pen, this.picture(width, height));
    }
    const pen = sized(this.above, width, height);
    if (pen !== null) this.paintAbove(pen);
    this.stale = { lines: false, above: false };
  }

  private paintAbove(pen: CanvasRenderingContext2D): void {
    const made = this.drawn;
    const props = this.props;
    if (made === null || props === null) return;
    if (this.picked !== null) {
      pen.fillStyle = resolved("var(--accent)");
      pen.globalAlpha = 0.15;
      const a = Math.max(this.picked[0], made.xs.pixels[0]);
      const b = Math.min(this.picked[1], made.xs.pixels[1]);
      pen.fillRect(a, made.ys.pixels[1], Math.max(0, b - a), made.ys.pixels[0] - made.ys.pixels[1]);
      pen.globalAlpha = 1;
    }
    if (this.cursor === null || this.cursor < made.xs.domain[0] || this.cursor > made.xs.domain[1]) return this.show(null);
    const kind = props.yKind ?? "number";
    let at: number | null = null;
    let distance = Infinity;
    const found = this.series.map((each) => {
      const index = nearest(each, this.cursor as number);
      if (index >= 0 && Math.abs((each.x[index] as number) - (this.cursor as number)) < distance) {
        at = each.x[index] as number;
        distance = Math.abs(at - (this.cursor as number));
      }
      return index;
    });
    const x = Math.round(place(made.xs, at ?? this.cursor)) + 0.5;
    pen.strokeStyle = resolved("var(--strong)");
    pen.lineWidth = 1;
    pen.beginPath();
    pen.moveTo(x, made.ys.pixels[0]);
    pen.lineTo(x, made.ys.pixels[1]);
    pen.stroke();
    const values = found.map((index, line) => {
      const each = this.series[line];
      if (each === undefined || index < 0) return "–";
      const value = (this.smooth[line] ?? each.y)[index] as number;
      const px = place(made.xs, each.x[index] as number);
      const py = place(made.ys, value);
      if (px >= made.xs.pixels[0] && px <= made.xs.pixels[1] && Number.isFinite(py)) {
        pen.fillStyle = resolved(props.lines[line]?.color ?? "");
        pen.strokeStyle = resolved("var(--paper)");
        pen.beginPath();
        pen.arc(px, py, 3.5, 0, 7);
        pen.fill();
        pen.stroke();
      }
      return said(value, kind);
    });
    this.show({ x: said(at ?? this.cursor, props.xKind ?? "number"), values });
  }
}

function sized(canvas: HTMLCanvasElement, width: number, height: number): CanvasRenderingContext2D | null {
  const ratio = window.devicePixelRatio || 1;
  const wide = Math.round(width * ratio);
  const high = Math.round(height * ratio);
  if (canvas.width !== wide) canvas.width = wide;
  if (canvas.height !== high) canvas.height = high;
  const pen = canvas.getContext("2d");
  pen?.setTransform(ratio, 0, 0, ratio, 0, 0);
  pen?.clearRect(0, 0, width, height);
  return pen;
}

function same(a: Range | null | undefined, b: Range | null | undefined): boolean {
  if (!a || !b) return a === b;
  return a[0] === b[0] && a[1] === b[1];
}
