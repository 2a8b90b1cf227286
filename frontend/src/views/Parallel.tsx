// Parallel coordinates: a line for each trial through an axis for each parameter. Dragging along an axis keeps only the
// trials that cross it there.

import { Fragment } from "preact";
import { useMemo, useRef, useState } from "preact/hooks";
import { number } from "../words";
import { useWidth } from "./pieces";
import { axisMarks, goodness, nearest, passes, valueAt, type Axis, type Brushes, type Parallel as Data, type TrialLine } from "./trials";

const TOP = 44;
const HEIGHT = 250;
const SIDE = 52;
const RIGHT = 74;
const LEAST_STEP = 92;
const STEPS = 9;

export interface ParallelProps {
  readonly data: Data;
  readonly brushes: Brushes;
  readonly brush: (brushes: Brushes) => void;
  readonly hovered: string | null;
  readonly hover: (trial: string | null) => void;
  readonly pick: (trial: string) => void;
}

export function Parallel({ data, brushes, brush, hovered, hover, pick }: ParallelProps) {
  const [place, outer] = useWidth(900);
  const step = data.axes.length > 1 ? Math.max(LEAST_STEP, (outer - SIDE - RIGHT) / (data.axes.length - 1)) : 0;
  const width = data.axes.length > 1 ? SIDE + RIGHT + step * (data.axes.length - 1) : outer;
  const inside = useMemo(() => data.lines.filter((line) => passes(line, data.axes, brushes)), [data, brushes]);
  const chosen = new Set(inside.map((line) => line.trial_id));
  const outside = useMemo(() => data.lines.filter((line) => !chosen.has(line.trial_id)), [inside]);
  const lines = useMemo(() => (
    <Fragment>
      <g class="trial-lines outside">{outside.map((line) => <path d={path(line, step)} />)}</g>
      <g class="trial-lines">{[...inside].sort((a, b) => (goodness(a, data.mode) ?? -1) - (goodness(b, data.mode) ?? -1)).map((line) => (
        <path class={line.value === null ? "unknown" : ""} d={path(line, step)} style={{ stroke: tint(line, data.mode) }} data-trial={line.trial_id} />
      ))}</g>
    </Fragment>
  ), [inside, outside, step, data]);
  const over = data.lines.find((line) => line.trial_id === hovered);
  const at = (event: PointerEvent): string | null => {
    const box = (event.currentTarget as SVGElement).getBoundingClientRect();
    return nearest(inside, event.clientX - box.left - SIDE, event.clientY - box.top - TOP, step, HEIGHT);
  };
  return (
    <div class="parallel" ref={place}>
      <svg width={width} height={TOP + HEIGHT + 22} role="group" aria-label={`Parallel coordinates of ${data.lines.length} trials over ${data.axes.length - 1} parameters`}
        onPointerMove={(event: PointerEvent) => hover(at(event))} onPointerLeave={() => hover(null)} onClick={(event: MouseEvent) => { const trial = at(event as PointerEvent); if (trial !== null) pick(trial); }}>
        <g transform={`translate(${SIDE} ${TOP})`}>
          {lines}
          {over === undefined ? null : <path class="trial-hovered" d={path(over, step)} />}
          {data.axes.map((axis, index) => (
            <OneAxis key={axis.name} axis={axis} x={index * step} isMetric={index === data.axes.length - 1} brush={brushes[axis.name] ?? null}
              set={(range) => { const { [axis.name]: _, ...others } = brushes; brush(range === null ? others : { ...others, [axis.name]: range }); }} />
          ))}
        </g>
      </svg>
    </div>
  );
}

// Better trials have stronger colours: --t0 to --t9 go from soft to accent.
export function tint(line: TrialLine, mode: "min" | "max"): string {
  return `var(--t${Math.round((goodness(line, mode) ?? 0) * STEPS)})`;
}

function path(line: TrialLine, step: number): string {
  let d = "";
  let pen = false;
  line.points.forEach((at, index) => {
    if (at !== null) d += `${pen ? "L" : "M"}${(index * step).toFixed(1)} ${((1 - at) * HEIGHT).toFixed(1)}`;
    pen = at !== null;
  });
  return d;
}

function OneAxis({ axis, x, isMetric, brush, set }: {
  axis: Axis; x: number; isMetric: boolean; brush: readonly [number, number] | null; set: (range: readonly [number, number] | null) => void;
}) {
  const from = useRef<number | null>(null);
  const [dragged, setDragged] = useState<readonly [number, number] | null>(null);
  const marks = useMemo(() => axisMarks(axis, number), [axis]);
  const placeOf = (event: PointerEvent): number => {
    const box = (event.currentTarget as SVGElement).getBoundingClientRect();
    return Math.max(0, Math.min(1, 1 - (event.clientY - box.top - 8) / HEIGHT));
  };
  const down = (event: PointerEvent) => {
    if (event.button !== 0) return;
    (event.currentTarget as SVGElement).setPointerCapture(event.pointerId);
    from.current = placeOf(event);
    event.preventDefault();
    (event.currentTarget as SVGElement).focus();
  };
  const move = (event: PointerEvent) => {
    if (from.current === null) return;
    event.stopPropagation();
    const to = placeOf(event);
    setDragged([Math.min(from.current, to), Math.max(from.current, to)]);
  };
  const up = () => {
    if (from.current === null) return;
    from.current = null;
    set(dragged !== null && dragged[1] - dragged[0] > 0.012 ? dragged : null);
    setDragged(null);
  };
  const handleKey = (event: KeyboardEvent) => {
    const way = event.key === "ArrowUp" ? 1 : event.key === "ArrowDown" ? -1 : 0;
    if (event.key === "Escape" || event.key === "Delete") set(null);
    if (way === 0) return;
    event.preventDefault();
    if (brush === null) return set(way > 0 ? [0.75, 1] : [0, 0.25]);
    const [low, high] = brush;
    const by = 0.05 * way;
    // With shift, one end moves; else both.
    if (event.shiftKey) return set([low, Math.max(low + 0.02, Math.min(1, high + by))]);
    const moved = Math.max(-low, Math.min(1 - high, by));
    return set([low + moved, high + moved]);
  };
  const bounds = dragged ?? brush;
  const label = bounds === null ? "all" : `${formatBound(valueAt(axis, bounds[0]))} to ${formatBound(valueAt(axis, bounds[1]))}`;
  return (
    <g class={`axis ${isMetric ? "is-metric" : ""}`} transform={`translate(${x} 0)`} data-axis={axis.name}>
      <title>{axis.name}</title>
      <text class="axis-name" y={-26} text-anchor="middle">{shorten(axis.label)}</text>
      <text class="axis-range" y={-12} text-anchor="middle">{bounds === null ? (axis.log ? "log" : axis.is_cut ? "worst cut off" : "") : shorten(label, 18)}</text>
      <line y1={0} y2={HEIGHT} />
      {marks.map((mark) => <g class="axis-mark" transform={`translate(0 ${(1 - mark.at) * HEIGHT})`}><line x1={-3} x2={3} /><text x={6} y={3.5}>{shorten(mark.text, 12)}</text></g>)}
      {axis.has_gaps ? <text class="axis-range" y={HEIGHT + 16} text-anchor="middle">some unset</text> : null}
      {bounds === null ? null : <rect class="brush" x={-7} width={14} y={(1 - bounds[1]) * HEIGHT} height={Math.max(2, (bounds[1] - bounds[0]) * HEIGHT)} rx={2} />}
      <rect class="axis-area" x={-14} y={-8} width={28} height={HEIGHT + 16} tabindex={0} role="slider" aria-orientation="vertical" aria-label={`Keep trials by ${axis.name}`}
        aria-valuemin={0} aria-valuemax={1} aria-valuenow={bounds === null ? 0 : bounds[0]} aria-valuetext={label}
        onPointerDown={down} onPointerMove={move} onPointerUp={up} onPointerCancel={up} onKeyDown={handleKey} onClick={(event) => event.stopPropagation()} />
    </g>
  );
}

function formatBound(value: number | string): string {
  return typeof value === "number" ? number(Number(value.toPrecision(2))) : value;
}

function shorten(text: string, most = 14): string {
  return text.length > most ? `${text.slice(0, most - 1)}…` : text;
}
