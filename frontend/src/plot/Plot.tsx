// A plot with its title, legend, values at the pointer, and buttons.

import { useLayoutEffect, useRef, useState } from "preact/hooks";
import { saveCsv, savePng, tableOf } from "../export";
import { Chart } from "./chart";
import type { Shown } from "./chart";
import { attachGestures } from "./gestures";
import { registerPlot } from "./plots-on-page";
import type { PlotProps } from "./types";

export function Plot(props: PlotProps) {
  const { title, lines, nothing = "No points yet" } = props;
  const area = useRef<HTMLDivElement>(null);
  const place = useRef<HTMLDivElement>(null);
  const text = useRef<HTMLParagraphElement>(null);
  const x = useRef<HTMLSpanElement>(null);
  const legend = useRef<HTMLUListElement>(null);
  const chart = useRef<Chart>(null);
  const latest = useRef(props);
  latest.current = props;
  const [large, setLarge] = useState(false);

  useLayoutEffect(() => {
    if (area.current === null || place.current === null) return;
    const created = new Chart(place.current, (shown) => showValues(shown));
    chart.current = created;
    const unlisten = attachGestures(area.current, created);
    const unlist = registerPlot({ title: () => latest.current.title, props: () => latest.current, chart: created, element: area.current });
    return () => (unlisten(), unlist(), created.end());
  }, []);
  useLayoutEffect(() => {
    if (chart.current?.set(props) && text.current !== null) text.current.textContent = chart.current.describePlot();
  });

  // The pointer moves more often than the page renders, so texts are set directly.
  const showValues = (shown: Shown | null) => {
    if (x.current !== null) {
      const only = shown !== null && latest.current.lines.length === 1 ? `  ${shown.values[0] ?? ""}` : "";
      const label = latest.current.xLabel;
      x.current.textContent = shown === null ? "" : `${label ? `${label} ` : ""}${shown.x}${only}`;
    }
    legend.current?.querySelectorAll(".legend-value").forEach((place, index) => {
      place.textContent = shown?.values[index] ?? "";
    });
  };

  const isEmpty = lines.every((line) => line.x.length === 0);
  return (
    <figure class={`plot card ${large ? "plot-large" : ""}`} data-plot={title}>
      <figcaption class="plot-head">
        <span class="plot-title cut" title={title}>{title}</span>
        <span class="plot-at mono" ref={x} aria-hidden="true" />
        <span class="plot-tools">
          <button type="button" class="quiet" onClick={() => chart.current?.reset()} aria-label={`${title}: show all of it`} title="Reset zoom (double click)">↺</button>
          <button type="button" class="quiet" onClick={() => setLarge(!large)} aria-pressed={large ? "true" : "false"} aria-label={`${title}: larger`} title="Larger">⤢</button>
          <button type="button" class="quiet" onClick={() => chart.current && savePng(title, [{ title, chart: chart.current, props: latest.current }])} aria-label={`${title}: save as PNG`} title="Save as PNG">PNG</button>
          <button type="button" class="quiet" onClick={() => saveCsv(title, tableOf(latest.current))} aria-label={`${title}: save points as CSV`} title="Save the points as CSV">CSV</button>
        </span>
      </figcaption>
      <div class="plot-area" ref={area} tabIndex={0} role="group" aria-roledescription="plot" aria-label={title}
        style={{ height: `${(props.height ?? 200) * (large ? 2 : 1)}px` }}>
        <div class="plot-canvas" ref={place} aria-hidden="true" />
        {isEmpty ? <span class="plot-nothing dim">{nothing}</span> : null}
        <p class="away" ref={text} />
      </div>
      {lines.length > 1 ? (
        <ul class="legend" ref={legend}>
          {lines.map((line, index) => (
            <li key={index} title={line.name}>
              <span class={`swatch ${line.dashed ? "is-dashed" : ""}`} style={{ color: line.color }} />
              <span class="legend-name cut">{line.name}</span>
              <span class="legend-value mono" />
            </li>
          ))}
        </ul>
      ) : null}
    </figure>
  );
}
