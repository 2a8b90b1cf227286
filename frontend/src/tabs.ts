// The tabs of a run, and where views plug in: add yours here.

import type { FunctionComponent } from "preact";
import type { RunSnapshot, Summary } from "./api";
import { Metrics } from "./metrics";
import type { Patch, Query } from "./router";
import type { Source } from "./source";
import { Control, Difference, Search, viewTabs } from "./views/index";

export interface ViewProps {
  readonly source: Source;
  // All about the run but its points; a new value whenever something is new.
  readonly detail: RunSnapshot;
  // The last step with points. It grows during the run, and decreases when the run resumes from a checkpoint.
  readonly last: number;
  // Whether stop, stacks and profile are allowed.
  readonly control: boolean;
  // The choices of the user, kept in the URL so that a link shows the same.
  readonly query: Query;
  readonly set: (patch: Patch) => void;
}

export interface Tab {
  readonly id: string;
  readonly title: string;
  readonly view: FunctionComponent<ViewProps>;
  // Left out where this says no.
  readonly shown?: (detail: RunSnapshot) => boolean;
  // A small number next to the title.
  readonly count?: (detail: RunSnapshot) => number | null;
}

export const runTabs: readonly Tab[] = [
  { id: "metrics", title: "Metrics", view: Metrics, count: (detail) => detail.metric_names.length },
  ...viewTabs,
];

export interface SearchProps {
  readonly source: Source;
  readonly summary: Summary;
  readonly query: Query;
  readonly set: (patch: Patch) => void;
}

export interface DiffProps {
  readonly source: Source;
  readonly a: string;
  readonly b: string;
}

export interface ControlProps {
  readonly source: Source;
  readonly summary: Summary;
}

// Views at other places: of a search as a whole, of what differs between two runs (below their plots), and the buttons
// in a run's header (only where the server allows control).
export const places: {
  readonly search: FunctionComponent<SearchProps> | null;
  readonly diff: FunctionComponent<DiffProps> | null;
  readonly control: FunctionComponent<ControlProps> | null;
} = { search: Search, diff: Difference, control: Control };
