// Gestures and keys beyond those of uPlot, which handles dragging and hovering: shift-drag or two fingers to pan and
// zoom, wheel to zoom (sideways to pan), double click to reset. One finger scrolls the page, and a tap hovers.

import type { Chart } from "./chart";

export function attachGestures(element: HTMLElement, chart: Chart): () => void {
  const fingers = new Map<number, { x: number; y: number }>();
  const ended = new AbortController();
  let panX: number | null = null;
  let gap = 0;
  let middle = 0;

  const on = <K extends keyof HTMLElementEventMap>(name: K, act: (event: HTMLElementEventMap[K]) => void) =>
    element.addEventListener(name, act, { signal: ended.signal, passive: false });

  const updatePinch = () => {
    const [a, b] = [...fingers.values()];
    if (a === undefined || b === undefined) return;
    gap = Math.max(8, Math.hypot(a.x - b.x, a.y - b.y));
    middle = (a.x + b.x) / 2;
  };
  on("pointerdown", (event) => {
    if (event.pointerType === "touch") {
      fingers.set(event.pointerId, { x: event.clientX, y: event.clientY });
      return updatePinch();
    }
    if (!(event.button === 1 || (event.button === 0 && event.shiftKey))) return;
    event.preventDefault();
    element.focus();
    element.setPointerCapture(event.pointerId);
    panX = event.clientX;
  });
  on("pointermove", (event) => {
    if (fingers.has(event.pointerId)) fingers.set(event.pointerId, { x: event.clientX, y: event.clientY });
    if (fingers.size === 2) {
      const before = { gap, middle };
      updatePinch();
      chart.pan(middle - before.middle);
      chart.zoom(middle, before.gap / gap);
    } else if (panX !== null) {
      chart.pan(event.clientX - panX);
      panX = event.clientX;
    }
  });
  const up = (event: PointerEvent) => {
    fingers.delete(event.pointerId);
    panX = null;
  };
  on("pointerup", up);
  on("pointercancel", up);
  on("wheel", (event) => {
    const sideways = Math.abs(event.deltaX) > Math.abs(event.deltaY) || event.shiftKey;
    // Scrolling the page must not zoom a plot: that needs a click on it, or ctrl.
    if (!sideways && !event.ctrlKey && document.activeElement !== element) return;
    event.preventDefault();
    if (sideways) chart.pan(-(event.deltaX || event.deltaY));
    else chart.zoom(event.clientX, Math.exp(Math.max(-120, Math.min(120, event.deltaY)) * 0.003));
  });
  on("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    if (handleKey(event.key, chart)) event.preventDefault();
  });
  on("dblclick", () => chart.reset());
  return () => ended.abort();
}

function handleKey(key: string, chart: Chart): boolean {
  switch (key) {
    case "+": case "=": return chart.zoomMiddle(0.7), true;
    case "-": case "_": return chart.zoomMiddle(1 / 0.7), true;
    case "ArrowLeft": return chart.panBy(-0.15), true;
    case "ArrowRight": return chart.panBy(0.15), true;
    case "0": return chart.reset(), true;
    default: return false;
  }
}
