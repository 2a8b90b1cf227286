// Saves plots as images and their points as CSV.

import type { Chart } from "./plot/chart";
import { resolveColor } from "./plot/colors";
import { FONT } from "./plot/options";
import type { PlotProps } from "./plot/types";
import { plotsOnPage } from "./plot/plots-on-page";

export interface ExportedPlot { readonly title: string; readonly chart: Chart; readonly props: PlotProps }
export type Cell = string | number | null;

// RFC 4180, with formulas of spreadsheets escaped.
export function csv(rows: readonly (readonly Cell[])[]): string {
  return rows.map((row) => row.map(cell).join(",")).join("\r\n") + "\r\n";
}

function cell(value: Cell): string {
  if (value === null) return "";
  if (typeof value === "number") return String(value);
  const text = /^[=+\-@\t\r]/.test(value) ? `'${value}` : value;
  return /[",\r\n]/.test(text) ? `"${text.replace(/"/g, '""')}"` : text;
}

// A row for each point of a plot.
export function tableOf(props: PlotProps): Cell[][] {
  return [["plot", "line", props.xLabel ?? "x", "value", "low", "high"], ...rowsOf(props)];
}

function rowsOf(props: PlotProps): Cell[][] {
  return props.lines.flatMap((line) => line.x.map((x, index): Cell[] => [
    props.title, line.name, x, line.y[index] ?? null, line.low?.[index] ?? null, line.high?.[index] ?? null,
  ]));
}

export function fileName(title: string, ending: string): string {
  const plain = title.normalize("NFKD").replace(/[^\w.-]+/g, "-").replace(/^[-.]+|[-.]+$/g, "").slice(0, 80);
  return `${plain === "" ? "paceline" : plain}.${ending}`;
}

export function saveCsv(title: string, rows: readonly (readonly Cell[])[]): void {
  save(fileName(title, "csv"), new Blob([csv(rows)], { type: "text/csv" }));
}

// All plots of the page in one table.
export function savePageCsv(title: string): void {
  const plots = plotsOnPage();
  const label = plots[0]?.props().xLabel ?? "x";
  saveCsv(title, [["plot", "line", label, "value", "low", "high"], ...plots.flatMap((plot) => rowsOf(plot.props()))]);
}

export function savePagePng(title: string): void {
  savePng(title, plotsOnPage().map(({ chart, title: name, props }) => ({ chart, title: name(), props: props() })));
}

const WIDTH = 640;
const GAP = 16;
const HEAD = 26;
const ROW = 16;
// Pixels of the file per pixel of a plot.
const DENSE = 2;

export function savePng(title: string, plots: readonly ExportedPlot[]): void {
  if (plots.length === 0) return;
  const across = plots.length === 1 ? 1 : plots.length <= 4 ? 2 : 3;
  const width = plots.length === 1 ? 900 : WIDTH;
  const height = plots.length === 1 ? 420 : 260;
  const rows: ExportedPlot[][] = [];
  for (let index = 0; index < plots.length; index += across) rows.push(plots.slice(index, index + across));
  const tops: number[] = [];
  let total = plots.length === 1 ? GAP : GAP + HEAD;
  for (const row of rows) {
    tops.push(total);
    total += HEAD + height + Math.max(...row.map((plot) => legendRows(plot, width))) * ROW + GAP;
  }
  const canvas = document.createElement("canvas");
  canvas.width = (across * (width + GAP) + GAP) * DENSE;
  canvas.height = total * DENSE;
  const pen = canvas.getContext("2d");
  if (pen === null) return;
  pen.scale(DENSE, DENSE);
  pen.fillStyle = resolveColor("var(--paper)");
  pen.fillRect(0, 0, canvas.width, canvas.height);
  if (plots.length > 1) drawHeading(pen, title, GAP, GAP + 12, canvas.width / DENSE - 2 * GAP);
  rows.forEach((row, index) => row.forEach((plot, column) => {
    pen.save();
    pen.translate(GAP + column * (width + GAP), tops[index] ?? 0);
    drawPlot(pen, plot, width, height);
    pen.restore();
  }));
  canvas.toBlob((blob) => blob !== null && save(fileName(title, "png"), blob), "image/png");
}

function drawPlot(pen: CanvasRenderingContext2D, plot: ExportedPlot, width: number, height: number): void {
  drawHeading(pen, plot.title, 0, 12, width);
  pen.drawImage(plot.chart.renderCanvas(width * DENSE, height * DENSE, DENSE), 0, HEAD, width, height);
  if (plot.props.lines.length < 2) return;
  pen.font = FONT;
  pen.textAlign = "left";
  pen.textBaseline = "middle";
  const across = legendColumns(width);
  plot.props.lines.forEach((line, index) => {
    const x = (index % across) * (width / across);
    const y = HEAD + height + Math.floor(index / across) * ROW + 8;
    pen.strokeStyle = resolveColor(line.color);
    pen.lineWidth = 2;
    pen.setLineDash(line.dashed ? [4, 3] : []);
    pen.beginPath();
    pen.moveTo(x, y);
    pen.lineTo(x + 16, y);
    pen.stroke();
    pen.setLineDash([]);
    pen.fillStyle = resolveColor("var(--ink)");
    pen.fillText(clipText(pen, line.name, width / across - 30), x + 22, y);
  });
}

function drawHeading(pen: CanvasRenderingContext2D, title: string, x: number, y: number, width: number): void {
  pen.font = FONT.replace("11px", "600 13px");
  pen.textAlign = "left";
  pen.textBaseline = "middle";
  pen.fillStyle = resolveColor("var(--ink)");
  pen.fillText(clipText(pen, title, width), x, y);
}

function legendColumns(width: number): number {
  return Math.max(1, Math.floor(width / 210));
}

function legendRows(plot: ExportedPlot, width: number): number {
  return plot.props.lines.length < 2 ? 0 : Math.ceil(plot.props.lines.length / legendColumns(width));
}

function clipText(pen: CanvasRenderingContext2D, text: string, width: number): string {
  if (pen.measureText(text).width <= width) return text;
  let end = text.length;
  while (end > 1 && pen.measureText(`${text.slice(0, end)}…`).width > width) end -= 1;
  return `${text.slice(0, end)}…`;
}

function save(name: string, blob: Blob): void {
  const url = URL.createObjectURL(blob);
  const link = document.createElement("a");
  link.href = url;
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(url), 10_000);
}
