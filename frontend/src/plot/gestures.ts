// What hands and keys do on a plot beside what uPlot knows, which is dragging to pick a part and pointing: shift-drag or
// two fingers to pan and zoom, wheel to zoom (sideways to pan), double click to reset. One finger scrolls the page,
// as it does elsewhere, and a tap points.

import type { Chart } from "./chart";

export function handled(element: HTMLElement, chart: Chart): () => void {
  const fingers = new Map<number, { x: number; y: number }>();
  const ended = new AbortController();
  let panned: number | null = null;
  let gap = 0;
  let middle = 0;

  const on = <K extends keyof HTMLElementEventMap>(name: K, act: (event: HTMLElementEventMap[K]) => void) =>
    element.addEventListener(name, act, { signal: ended.signal, passive: false });

  const pinched = () => {
    const [a, b] = [...fingers.values()];
    if (a === undefined || b === undefined) return;
    gap = Math.max(8, Math.hypot(a.x - b.x, a.y - b.y));
    middle = (a.x + b.x) / 2;
  };
  on("pointerdown", (event) => {
    if (event.pointerType === "touch") {
      fingers.set(event.pointerId, { x: event.clientX, y: event.clientY });
      return pinched();
    }
    if (!(event.button === 1 || (event.button === 0 && event.shiftKey))) return;
    event.preventDefault();
    element.focus();
    element.setPointerCapture(event.pointerId);
    panned = event.clientX;
  });
  on("pointermove", (event) => {
    if (fingers.has(event.pointerId)) fingers.set(event.pointerId, { x: event.clientX, y: event.clientY });
    if (fingers.size === 2) {
      const before = { gap, middle };
      pinched();
      chart.pan(middle - before.middle);
      chart.zoom(middle, before.gap / gap);
    } else if (panned !== null) {
      chart.pan(event.clientX - panned);
      panned = event.clientX;
    }
  });
  const up = (event: PointerEvent) => {
    fingers.delete(event.pointerId);
    panned = null;
  };
  on("pointerup", up);
  on("pointercancel", up);
  on("wheel", (event) => {
    const sideways = Math.abs(event.deltaX) > Math.abs(event.deltaY) || event.shiftKey;
    // A page that is scrolled past a plot is not caught by it: one has to point at it, or hold ctrl, first.
    if (!sideways && !event.ctrlKey && document.activeElement !== element) return;
    event.preventDefault();
    if (sideways) chart.pan(-(event.deltaX || event.deltaY));
    else chart.zoom(event.clientX, Math.exp(Math.max(-120, Math.min(120, event.deltaY)) * 0.003));
  });
  on("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    if (pressed(event.key, chart)) event.preventDefault();
  });
  on("dblclick", () => chart.reset());
  return () => ended.abort();
}

function pressed(key: string, chart: Chart): boolean {
  switch (key) {
    case "+": case "=": return chart.zoomMiddle(0.7), true;
    case "-": case "_": return chart.zoomMiddle(1 / 0.7), true;
    case "ArrowLeft": return chart.panBy(-0.15), true;
    case "ArrowRight": return chart.panBy(0.15), true;
    case "0": return chart.reset(), true;
    default: return false;
  }
}
