// The props of `Plot` in plot/Plot.tsx.

export interface Line {
  readonly name: string;
  // Anything that CSS takes: `lineColor(i)` of plot/colors.ts.
  readonly color: string;
  // Rising.
  readonly x: readonly number[];
  readonly y: readonly (number | null)[];
  // Drawn as a band around the line, if points represent more than one value.
  readonly low?: readonly (number | null)[];
  readonly high?: readonly (number | null)[];
  readonly dashed?: boolean;
}

export interface PlotProps {
  readonly title: string;
  readonly lines: readonly Line[];
  readonly xLabel?: string;
  // "number": plain; "seconds": durations; "clock": seconds since the epoch.
  readonly xKind?: "number" | "seconds" | "clock";
  readonly yKind?: "number" | "bytes" | "share";
  readonly logY?: boolean;
  readonly height?: number;
  // From 0 (none) to 0.99. The original line stays visible, faintly.
  readonly smoothing?: number;
  // Marks across the plot: where an attempt began, or a checkpoint was made.
  readonly marks?: readonly { readonly x: number; readonly label: string }[];
  // RequestState when a person has panned or zoomed; null: the whole again.
  readonly onRange?: (range: readonly [number, number] | null) => void;
  readonly range?: readonly [number, number] | null;
  // How far one may pan and zoom out, where the lines hold only a part of it.
  readonly whole?: readonly [number, number] | null;
  // The range of y that is always visible: [0, 1] for shares, for example.
  readonly yShows?: readonly [number, number];
  // Said where there are no points.
  readonly nothing?: string;
}
