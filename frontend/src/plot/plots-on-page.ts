// The plots on the page, in their order, for saving all of them at once.

import type { Chart } from "./chart";
import type { PlotProps } from "./types";

export interface PlotOnPage {
  readonly title: () => string;
  readonly props: () => PlotProps;
  readonly chart: Chart;
  readonly element: Element;
}

const all = new Set<PlotOnPage>();

export function registerPlot(plot: PlotOnPage): () => void {
  all.add(plot);
  return () => void all.delete(plot);
}

export function plotsOnPage(): PlotOnPage[] {
  return [...all].sort((a, b) => (a.element.compareDocumentPosition(b.element) & Node.DOCUMENT_POSITION_FOLLOWING ? -1 : 1));
}
