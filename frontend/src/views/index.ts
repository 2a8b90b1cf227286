// The views of a run beside its metrics, registered in `tabs.ts`.

import type { RunSnapshot } from "../api";
import { ENDED } from "../parts";
import type { Tab } from "../tabs";
import { Checkpoints } from "./Checkpoints";
import { Configuration } from "./Configuration";
import { Files } from "./Files";
import { Logs } from "./Logs";
import { Timeline } from "./Timeline";
import { TimeView } from "./TimeView";
import { Workers } from "./Workers";

export { Control } from "./Control";
export { Difference, DiffView } from "./DiffView";
export { Search } from "./Search";

export const viewTabs: readonly Tab[] = [
  { id: "workers", title: "Workers", view: Workers, count: (detail: RunSnapshot) => detail.summary.num_workers },
  { id: "logs", title: "Logs", view: Logs },
  { id: "timeline", title: "Timeline", view: Timeline, count: (detail: RunSnapshot) => (detail.summary.num_failures > 0 ? detail.summary.num_failures : null) },
  { id: "time", title: "Time", view: TimeView },
  { id: "checkpoints", title: "Checkpoints", view: Checkpoints, count: (detail: RunSnapshot) => (detail.checkpoints.length > 0 ? detail.checkpoints.length : null) },
  { id: "config", title: "Configuration", view: Configuration },
  {
    id: "files", title: "Profiles", view: Files, count: (detail: RunSnapshot) => (detail.files.length > 0 ? detail.files.length : null),
    // An ended run cannot get new ones.
    shown: (detail: RunSnapshot) => detail.files.length > 0 || !ENDED.has(detail.summary.state),
  },
];
