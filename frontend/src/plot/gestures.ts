// What hands and keys do on a plot: drag to zoom, shift-drag or two fingers to pan and zoom, wheel to zoom (sideways to
// pan), double click for all of it. One finger scrolls the page, as it does elsewhere, and a tap points.

import type { Chart } from "./chart";

export function handled(element: HTMLElement, chart: Chart): () => void {
  const fingers = new Map<number, { x: number; y: number }>();
  let began: number | null = null;
  let panning = false;
  let gap = 0;
  let middle = 0;

  const at = (event: MouseEvent) => event.clientX - element.getBoundingClientRect().left;

  const down = (event: PointerEvent) => {
    if (event.pointerType === "mouse" && event.button > 1) return;
    fingers.set(event.pointerId, { x: at(event), y: event.clientY });
    if (fingers.size === 2) return pinched();
    if (event.pointerType === "touch") return chart.hover(at(event));
    element.setPointerCapture(event.pointerId);
    began = at(event);
    panning = event.shiftKey || event.button === 1;
    if (panning) event.preventDefault();
  };
  const pinched = () => {
    const [a, b] = [...fingers.values()];
    if (a === undefined || b === undefined) return;
    began = null;
    gap = Math.max(8, Math.hypot(a.x - b.x, a.y - b.y));
    middle = (a.x + b.x) / 2;
  };
  const move = (event: PointerEvent) => {
    const x = at(event);
    if (fingers.has(event.pointerId)) fingers.set(event.pointerId, { x, y: event.clientY });
    if (fingers.size === 2) {
      const before = { gap, middle };
      pinched();
      chart.pan(middle - before.middle);
      chart.zoom(middle, before.gap / gap);
      return;
    }
    if (began === null) return chart.hover(x);
    if (panning) {
      chart.pan(x - began);
      began = x;
    } else {
      chart.pick(began, x);
      chart.hover(x);
    }
  };
  const up = (event: PointerEvent) => {
    fingers.delete(event.pointerId);
    if (began !== null && !panning) chart.take();
    began = null;
  };
  const cancelled = (event: PointerEvent) => {
    fingers.delete(event.pointerId);
    began = null;
    chart.pick(null, 0);
  };
  const left = () => began === null && chart.hover(null);
  const wheel = (event: WheelEvent) => {
    const sideways = Math.abs(event.deltaX) > Math.abs(event.deltaY) || event.shiftKey;
    // A page that is scrolled past a plot is not caught by it: one has to point at it, or hold ctrl, first.
    if (!sideways && !event.ctrlKey && document.activeElement !== element) return;
    event.preventDefault();
    if (sideways) chart.pan(-(event.deltaX || event.deltaY));
    else chart.zoom(at(event), Math.exp(Math.max(-120, Math.min(120, event.deltaY)) * 0.003));
  };
  const key = (event: KeyboardEvent) => {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const done = pressed(event.key, chart);
    if (done) event.preventDefault();
  };
  const twice = () => chart.reset();
  element.addEventListener("pointerdown", down);
  element.addEventListener("pointermove", move);
  element.addEventListener("pointerup", up);
  element.addEventListener("pointercancel", cancelled);
  element.addEventListener("pointerleave", left);
  element.addEventListener("wheel", wheel, { passive: false });
  element.addEventListener("keydown", key);
  element.addEventListener("dblclick", twice);
  return () => {
    element.removeEventListener("pointerdown", down);
    element.removeEventListener("pointermove", move);
    element.removeEventListener("pointerup", up);
    element.removeEventListener("pointercancel", cancelled);
    element.removeEventListener("pointerleave", left);
    element.removeEventListener("wheel", wheel);
    element.removeEventListener("keydown", key);
    element.removeEventListener("dblclick", twice);
  };
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
