// Where the time of a run went: the parts of the bar, and sentences that explain them.

import type { SaveBreakdown, ShownStage, TimeBreakdown } from "../api";
import { share } from "../words";

export type PartName = "starting" | "data" | "compute" | "report" | "checkpoint" | "between" | "unaccounted";

export interface Part {
  readonly name: PartName;
  readonly seconds: number;
  readonly share: number;
  readonly what: string;
}

const WHAT: Readonly<Record<PartName, string>> = {
  starting: "from requesting workers to the call of your function",
  data: "waiting for the next batch of a dataset",
  compute: "in your own code",
  report: "in report(): handing over metrics, waiting for the other ranks",
  checkpoint: "making checkpoints durable",
  between: "no workers: stopping, waiting for capacity, verifying checkpoints, or no driver",
  unaccounted: "not accounted for yet",
};

const WORTH_REPORTING = 0.1;
const CONSUMER = "the consumer";

// All parts, in the order in which they are drawn; they sum to the wall time.
export function parts(spent: TimeBreakdown): readonly Part[] {
  const seconds: readonly [PartName, number][] = [
    ["starting", spent.starting_s],
    ["data", spent.data_s],
    ["compute", spent.compute_s],
    ["report", spent.report_s],
    ["checkpoint", spent.checkpoint_s],
    ["between", spent.between_s],
  ];
  const accounted = seconds.reduce((sum, [, each]) => sum + Math.max(0, each), 0);
  const whole = Math.max(spent.wall_s, accounted);
  const left = whole - accounted;
  const all = left > whole * 0.005 ? [...seconds, ["unaccounted", left] as [PartName, number]] : seconds;
  return all.map(([name, each]) => ({
    name,
    seconds: Math.max(0, each),
    share: whole > 0 ? Math.max(0, each) / whole : 0,
    what: WHAT[name],
  }));
}

// One sentence each, the one that matters most first.
export function explainTime(spent: TimeBreakdown, stages: readonly ShownStage[], limitedBy: string | null): readonly string[] {
  const all = parts(spent);
  if (spent.wall_s <= 0) return ["No time has been measured yet."];
  const costly = all
    .filter((part) => part.name !== "compute" && part.name !== "unaccounted" && part.share >= WORTH_REPORTING)
    .sort((a, b) => b.share - a.share);
  const sentences = costly.map((part) => sentence(part, stages, limitedBy));
  if (sentences.length > 0) return sentences;
  const compute = all.find((part) => part.name === "compute");
  if (compute === undefined || compute.share < 0.5) return ["No part took long enough to be worth a change."];
  return [`compute: ${share(compute.share)} of the time went into your own code; nothing else slows it down.`];
}

function sentence(part: Part, stages: readonly ShownStage[], limitedBy: string | null): string {
  const much = share(part.share);
  switch (part.name) {
    case "data":
      return `data: workers waited ${much} of the time${remedy(stages, limitedBy)}.`;
    case "starting":
      return `starting: ${much} of the time passed before your function was called; a longer run makes up for it.`;
    case "report":
      return `report: ${much} of the time went into report(), where ranks also wait for the slowest; report less often.`;
    case "checkpoint":
      return `checkpoint: ${much} of the time went into saving; save less often, or let report() upload in the background.`;
    default:
      return `between: for ${much} of the time there were no workers; the timeline shows why.`;
  }
}

function remedy(stages: readonly ShownStage[], limitedBy: string | null): string {
  const limiting = limitedBy ?? stages.find((stage) => stage.limits)?.name ?? null;
  if (limiting === null) return "; the run does not report which stage they waited for";
  if (limiting === CONSUMER) return ", though the stages had rows ready: the batches are large, or far away";
  return `; stage ${limiting} limits: give it more processes`;
}

export interface SavePart { readonly name: string; readonly seconds: number; readonly what: string }

// What a save takes, in the order in which it is done; the upload only of a run in a store.
export function saveParts(saves: SaveBreakdown): readonly SavePart[] {
  const all: readonly SavePart[] = [
    { name: "Copy", seconds: saves.copy_s, what: "until the state may change again" },
    { name: "Write", seconds: saves.write_s, what: "while a write was in progress" },
    { name: "Hash", seconds: saves.hash_s, what: "hashing the files, and reading those that you wrote" },
    { name: "Sync", seconds: saves.sync_s, what: "until the files survive a power cut" },
    { name: "Upload", seconds: saves.upload_s, what: "to the store" },
    { name: "Commit", seconds: saves.commit_s, what: "by the driver: gathering the files of all ranks, and the manifest" },
  ];
  return all.filter((part) => part.name !== "Upload" || part.seconds > 0);
}

export interface StageShares { readonly busy: number; readonly input: number; readonly room: number }

export function stageShares(stage: ShownStage): StageShares {
  const whole = stage.busy_s + stage.waited_for_input_s + stage.waited_for_room_s;
  if (whole <= 0) return { busy: 0, input: 0, room: 0 };
  return { busy: stage.busy_s / whole, input: stage.waited_for_input_s / whole, room: stage.waited_for_room_s / whole };
}
