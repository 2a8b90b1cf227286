// The plots that are on the page now, in the order in which they stand there: to save all of them at once.

import type { Chart } from "./chart";
import type { PlotProps } from "./types";

export interface OnPage {
  readonly title: () => string;
  readonly props: () => PlotProps;
  readonly chart: Chart;
  readonly element: Element;
}

const all = new Set<OnPage>();

export function listed(plot: OnPage): () => void {
  all.add(plot);
  return () => void all.delete(plot);
}

export function onPage(): OnPage[] {
  return [...all].sort((a, b) => (a.element.compareDocumentPosition(b.element) & Node.DOCUMENT_POSITION_FOLLOWING ? -1 : 1));
}
