// One plot on the page: what it shows now, and when uPlot draws it. However much changes between two frames, it is
// drawn once.

import uPlot from "uplot";
import { forget, resolved } from "./colors";
import { formatLabel } from "./labels";
import { options, shapeOf } from "./options";
import { held, panned, zoomed } from "./range";
import type { Range } from "./range";
import { tabled } from "./table";
import type { Table } from "./table";
import { describePlot, xExtent } from "./description";
import type { PlotProps } from "./types";
import { onTheme } from "../theme";

// What a drawing depends on, and what of it the table does.
const TABLE = ["lines", "smoothing", "logY"] as const;
const DRAWN = [...TABLE, "xLabel", "xKind", "yKind", "height", "marks", "range", "whole", "yShows"] as const;

export interface Shown { readonly x: string; readonly values: readonly string[] }

export class Chart {
  private props: PlotProps = { title: "", lines: [] };
  private table: Table = tabled([], 0, false);
  private given: Table | null = null;
  private plot: uPlot | null = null;
  private shape = "";
  private view: Range | null = null;
  private givenRange: Range | null | undefined;
  private whole: Range = [0, 1];
  private frame = 0;
  private timer: ReturnType<typeof setTimeout> | undefined;
  private readonly resize: ResizeObserver;
  private readonly unTheme: () => void;

  constructor(private readonly place: HTMLElement, private readonly show: (shown: Shown | null) => void) {
    this.resize = new ResizeObserver(() => this.ask());
    this.resize.observe(place);
    this.unTheme = onTheme(() => (forget(), this.ask()));
  }

  end(): void {
    this.resize.disconnect();
    this.unTheme();
    clearTimeout(this.timer);
    cancelAnimationFrame(this.frame);
    this.plot?.destroy();
  }

  // Whether there is anything to draw again.
  set(props: PlotProps): boolean {
    const before = this.props;
    this.props = props;
    if (DRAWN.every((key) => before[key] === props[key])) return false;
    if (TABLE.some((key) => before[key] !== props[key])) this.table = tabled(props.lines, props.smoothing ?? 0, props.logY ?? false);
    if (props.range !== undefined && !same(props.range, this.givenRange)) this.view = props.range;
    this.givenRange = props.range;
    const extent = props.whole ?? xExtent(props.lines);
    if (extent !== null && (props.whole || this.view === null)) this.whole = extent;
    else if (extent !== null) this.whole = [Math.min(this.whole[0], extent[0]), Math.max(this.whole[1], extent[1])];
    if (!(this.whole[1] > this.whole[0])) this.whole = [this.whole[0] - 0.5, this.whole[0] + 0.5];
    this.ask();
    return true;
  }

  describePlot(): string {
    return describePlot(this.props, this.range());
  }

  // The plot at a size in pixels of its own, drawn now. Lines and letters are so many times larger.
  picture(width: number, height: number, times: number): HTMLCanvasElement {
    // uPlot multiplies all sizes by what a pixel of the page is in pixels of the screen.
    const ratio = uPlot.pxRatio;
    const made = new uPlot(options(this.drawn(), width / ratio, height / ratio, times / ratio), this.table.data, document.createElement("div"));
    made.batch(() => undefined);
    made.destroy();
    return made.ctx.canvas;
  }

  // What a person does. Pixels are those of the window.
  zoom(clientX: number, factor: number): void {
    if (this.plot === null) return;
    this.look(zoomed(this.range(), this.plot.posToVal(clientX - this.plot.over.getBoundingClientRect().left, "x"), factor, this.whole));
  }

  zoomMiddle(factor: number): void {
    const [from, to] = this.range();
    this.look(zoomed([from, to], (from + to) / 2, factor, this.whole));
  }

  pan(pixels: number): void {
    if (this.plot !== null) this.panBy(-pixels / Math.max(1, this.plot.over.clientWidth));
  }

  panBy(part: number): void {
    const [from, to] = this.range();
    this.look(panned([from, to], (to - from) * part, this.whole));
  }

  reset(): void {
    this.look(null);
  }

  private range(): Range {
    return this.view ?? this.whole;
  }

  private drawn() {
    return { props: () => this.props, range: () => this.range(), table: () => this.table };
  }

  private look(range: Range | null): void {
    if (same(range, this.view)) return;
    this.view = range;
    this.ask();
    clearTimeout(this.timer);
    this.timer = setTimeout(() => {
      this.givenRange = this.view;
      this.props.onRange?.(this.view);
    }, 120);
  }

  private ask(): void {
    if (this.frame === 0) this.frame = requestAnimationFrame(() => this.paint());
  }

  private paint(): void {
    this.frame = 0;
    const { clientWidth: width, clientHeight: height } = this.place;
    if (width === 0 || height === 0) return;
    const shape = shapeOf(this.props, this.table);
    if (this.plot === null || this.shape !== shape) {
      this.plot?.destroy();
      const base = options(this.drawn(), width, height);
      const { cursor, hooks } = this.pointed();
      this.plot = new uPlot({ ...base, cursor, hooks: { ...base.hooks, ...hooks } }, this.table.data, this.place);
      this.shape = shape;
      this.given = this.table;
      return;
    }
    const { plot, table } = this;
    plot.batch(() => {
      if (plot.width !== width || plot.height !== height) plot.setSize({ width, height });
      if (this.given !== table) plot.setData(table.data, false);
      const [min, max] = this.range();
      plot.setScale("x", { min, max });
    });
    this.given = table;
  }

  // The pointer: all plots of a page that have the same x follow it. A part that is picked is looked at.
  private pointed(): { readonly cursor: uPlot.Cursor; readonly hooks: uPlot.Hooks.Arrays } {
    const { columns } = this.table;
    const isMain = (index: number) => columns[index - 1]?.part === "main";
    const color = (_: uPlot, index: number) => resolved(this.props.lines[columns[index - 1]?.line ?? 0]?.color ?? "");
    return {
      cursor: {
        y: false,
        drag: { x: true, y: false, setScale: false, dist: 4 },
        // A line without a value there shows its next one.
        hover: { skip: [null, undefined] },
        points: {
          show: (_, index) => (isMain(index) ? document.createElement("div") : undefined as unknown as HTMLElement),
          size: 8, width: 1, fill: color, stroke: () => resolved("var(--paper)"),
        },
        sync: {
          key: `${this.props.xKind ?? "number"} ${this.props.xLabel ?? ""}`, scales: ["x", null],
          filters: { pub: (type) => type === "mousemove" },
        },
        // With shift it pans, which gestures.ts does, and so does a second click.
        bind: {
          mousedown: (_, __, handler) => (event) => (event.button === 0 && !event.shiftKey ? handler(event) : null),
          dblclick: () => null,
        },
      },
      hooks: {
        setCursor: [(self) => this.tell(self)],
        setSelect: [(self) => {
          const { left, width } = self.select;
          self.setSelect({ left: 0, top: 0, width: 0, height: 0 }, false);
          this.look(held([self.posToVal(left, "x"), self.posToVal(left + width, "x")], this.whole));
        }],
      },
    };
  }

  private tell(self: uPlot): void {
    const { left = -1, idxs = [] } = self.cursor;
    if (left < 0 || left > self.over.clientWidth) return this.show(null);
    const { lines, xKind = "number", yKind = "number" } = this.props;
    const pointer = self.posToVal(left, "x");
    let at = pointer;
    let distance = Infinity;
    const values = lines.map(() => "–");
    // What uPlot was given last, not what it is about to be given.
    this.given?.columns.forEach(({ line, part }, index) => {
      const found = part === "main" ? idxs[index + 1] ?? null : null;
      const value = found === null ? undefined : self.data[index + 1]?.[found];
      if (found === null || value === null || value === undefined) return;
      values[line] = formatLabel(value, yKind);
      const x = self.data[0][found] as number;
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
