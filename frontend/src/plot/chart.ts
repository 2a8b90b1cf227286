// One plot on the page: its state, and when uPlot draws it, at most once per frame.

import uPlot from "uplot";
import { clearColors, resolveColor } from "./colors";
import { formatLabel } from "./labels";
import { options, shapeOf } from "./options";
import { clampRange, panRange, zoomRange } from "./range";
import type { Range } from "./range";
import { buildTable } from "./table";
import type { Table } from "./table";
import { describePlot, xExtent } from "./description";
import type { PlotProps } from "./types";
import { onTheme } from "../theme";

// The props that the drawing depends on, and those that the table depends on.
const TABLE = ["lines", "smoothing", "logY"] as const;
const DRAWING = [...TABLE, "xLabel", "xKind", "yKind", "height", "marks", "range", "whole", "yShows"] as const;

export interface Shown { readonly x: string; readonly values: readonly string[] }

export class Chart {
  private props: PlotProps = { title: "", lines: [] };
  private table: Table = buildTable([], 0, false);
  private uploaded: Table | null = null;
  private plot: uPlot | null = null;
  private shape = "";
  private view: Range | null = null;
  private lastRange: Range | null | undefined;
  private whole: Range = [0, 1];
  private frame = 0;
  private timer: ReturnType<typeof setTimeout> | undefined;
  private readonly resize: ResizeObserver;
  private readonly unTheme: () => void;

  constructor(private readonly place: HTMLElement, private readonly show: (shown: Shown | null) => void) {
    this.resize = new ResizeObserver(() => this.requestPaint());
    this.resize.observe(place);
    this.unTheme = onTheme(() => (clearColors(), this.requestPaint()));
  }

  end(): void {
    this.resize.disconnect();
    this.unTheme();
    clearTimeout(this.timer);
    cancelAnimationFrame(this.frame);
    this.plot?.destroy();
  }

  // Returns whether the plot must be drawn again.
  set(props: PlotProps): boolean {
    const before = this.props;
    this.props = props;
    if (DRAWING.every((key) => before[key] === props[key])) return false;
    if (TABLE.some((key) => before[key] !== props[key])) this.table = buildTable(props.lines, props.smoothing ?? 0, props.logY ?? false);
    if (props.range !== undefined && !same(props.range, this.lastRange)) this.view = props.range;
    this.lastRange = props.range;
    const extent = props.whole ?? xExtent(props.lines);
    if (extent !== null && (props.whole || this.view === null)) this.whole = extent;
    else if (extent !== null) this.whole = [Math.min(this.whole[0], extent[0]), Math.max(this.whole[1], extent[1])];
    if (!(this.whole[1] > this.whole[0])) this.whole = [this.whole[0] - 0.5, this.whole[0] + 0.5];
    this.requestPaint();
    return true;
  }

  describePlot(): string {
    return describePlot(this.props, this.range());
  }

  // Draws the plot now at the given size in pixels, with lines and text scaled by `times`.
  renderCanvas(width: number, height: number, times: number): HTMLCanvasElement {
    // uPlot multiplies all sizes by the screen's pixel ratio.
    const ratio = uPlot.pxRatio;
    const made = new uPlot(options(this.state(), width / ratio, height / ratio, times / ratio), this.table.data, document.createElement("div"));
    made.batch(() => undefined);
    made.destroy();
    return made.ctx.canvas;
  }

  // User actions, in pixels of the window.
  zoom(clientX: number, factor: number): void {
    if (this.plot === null) return;
    this.setView(zoomRange(this.range(), this.plot.posToVal(clientX - this.plot.over.getBoundingClientRect().left, "x"), factor, this.whole));
  }

  zoomMiddle(factor: number): void {
    const [from, to] = this.range();
    this.setView(zoomRange([from, to], (from + to) / 2, factor, this.whole));
  }

  pan(pixels: number): void {
    if (this.plot !== null) this.panBy(-pixels / Math.max(1, this.plot.over.clientWidth));
  }

  panBy(part: number): void {
    const [from, to] = this.range();
    this.setView(panRange([from, to], (to - from) * part, this.whole));
  }

  reset(): void {
    this.setView(null);
  }

  private range(): Range {
    return this.view ?? this.whole;
  }

  private state() {
    return { props: () => this.props, range: () => this.range(), table: () => this.table };
  }

  private setView(range: Range | null): void {
    if (same(range, this.view)) return;
    this.view = range;
    this.requestPaint();
    clearTimeout(this.timer);
    this.timer = setTimeout(() => {
      this.lastRange = this.view;
      this.props.onRange?.(this.view);
    }, 120);
  }

  private requestPaint(): void {
    if (this.frame === 0) this.frame = requestAnimationFrame(() => this.paint());
  }

  private paint(): void {
    this.frame = 0;
    const { clientWidth: width, clientHeight: height } = this.place;
    if (width === 0 || height === 0) return;
    const shape = shapeOf(this.props, this.table);
    if (this.plot === null || this.shape !== shape) {
      this.plot?.destroy();
      const base = options(this.state(), width, height);
      const { cursor, hooks } = this.cursorOptions();
      this.plot = new uPlot({ ...base, cursor, hooks: { ...base.hooks, ...hooks } }, this.table.data, this.place);
      this.shape = shape;
      this.uploaded = this.table;
      return;
    }
    const { plot, table } = this;
    plot.batch(() => {
      if (plot.width !== width || plot.height !== height) plot.setSize({ width, height });
      if (this.uploaded !== table) plot.setData(table.data, false);
      const [min, max] = this.range();
      plot.setScale("x", { min, max });
    });
    this.uploaded = table;
  }

  // The pointer is shared by all plots with the same x. Dragging selects a range.
  private cursorOptions(): { readonly cursor: uPlot.Cursor; readonly hooks: uPlot.Hooks.Arrays } {
    const { columns } = this.table;
    const isMain = (index: number) => columns[index - 1]?.part === "main";
    const color = (_: uPlot, index: number) => resolveColor(this.props.lines[columns[index - 1]?.line ?? 0]?.color ?? "");
    return {
      cursor: {
        y: false,
        drag: { x: true, y: false, setScale: false, dist: 4 },
        // A line without a value there shows its nearest one.
        hover: { skip: [null, undefined] },
        points: {
          show: (_, index) => (isMain(index) ? document.createElement("div") : undefined as unknown as HTMLElement),
          size: 8, width: 1, fill: color, stroke: () => resolveColor("var(--paper)"),
        },
        sync: {
          key: `${this.props.xKind ?? "number"} ${this.props.xLabel ?? ""}`, scales: ["x", null],
          filters: { pub: (type) => type === "mousemove" },
        },
        // gestures.ts handles panning with shift, and double clicks.
        bind: {
          mousedown: (_, __, handler) => (event) => (event.button === 0 && !event.shiftKey ? handler(event) : null),
          dblclick: () => null,
        },
      },
      hooks: {
        setCursor: [(self) => this.showValues(self)],
        setSelect: [(self) => {
          const { left, width } = self.select;
          self.setSelect({ left: 0, top: 0, width: 0, height: 0 }, false);
          this.setView(clampRange([self.posToVal(left, "x"), self.posToVal(left + width, "x")], this.whole));
        }],
      },
    };
  }

  private showValues(self: uPlot): void {
    const { left = -1, idxs = [] } = self.cursor;
    if (left < 0 || left > self.over.clientWidth) return this.show(null);
    const { lines, xKind = "number", yKind = "number" } = this.props;
    const pointer = self.posToVal(left, "x");
    let at = pointer;
    let distance = Infinity;
    const values = lines.map(() => "–");
    // The table that uPlot has now, not the next one.
    this.uploaded?.columns.forEach(({ line, part }, index) => {
      const row = part === "main" ? idxs[index + 1] ?? null : null;
      const value = row === null ? undefined : self.data[index + 1]?.[row];
      if (row === null || value === null || value === undefined) return;
      values[line] = formatLabel(value, yKind);
      const x = self.data[0][row] as number;
      if (Math.abs(x - pointer) >= distance) return;
      distance = Math.abs(x - pointer);
      at = x;
    });
    this.show({ x: formatLabel(at, xKind), values });
  }
}

function same(a: Range | null | undefined, b: Range | null | undefined): boolean {
  if (!a || !b) return a === b;
  return a[0] === b[0] && a[1] === b[1];
}
