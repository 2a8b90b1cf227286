"""`verify_resume`: a run is compared with what comes of it when it is resumed from one of its own commits.

First the verdict: a replay from an earlier commit against the run's journal and its next checkpoint. Only if they
differ, the diagnosis: a second replay (is it repeatable?), then a shadow that goes on past the commit and one that
resumes from there, both noting down what they do.
"""

from __future__ import annotations

import dataclasses
import logging
import os
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from paceline._core.errors import TrainingFailedError
from paceline._engine.messages import CheckpointRecord
from paceline._storage.commit import problem_with, read_manifest
from paceline._storage.layout import Layout
from paceline._view.words import counted
from paceline.train.resume_proof import trace
from paceline.train.resume_proof.compare import (
    Difference,
    checkpoint_differences,
    leaf_paths,
    metric_differences,
    not_compared,
)
from paceline.train.resume_proof.diagnosis import NotRestored, diagnosed
from paceline.train.resume_proof.shadow import Recorded, Seen, of_size, played, recorded
from paceline.train.trainer import DataParallelTrainer

log = logging.getLogger("paceline.resume_proof")

Verdict = Literal["exact", "differs", "unchecked"]

_SHOWN = 5


@dataclass(frozen=True)
class ResumeProof:
    """Whether a run resumes exactly, and if not, why. `print(proof)` tells it in words."""

    verdict: Verdict
    """`unchecked` where there is nothing to compare; `reason` says why."""
    run: str | None = None
    """The directory of the run that was compared with; it was not written to. None: one that was made for the proof."""
    reason: str = ""
    checkpoint: str = ""
    """The one that was restored."""
    num_reports: int = 0
    """How many reports after it were compared, on every rank."""
    num_checkpoints: int = 0
    differences: tuple[Difference, ...] = ()
    """The first one first."""
    not_restored: tuple[NotRestored, ...] = ()
    repeatable: bool | None = None
    """Whether two replays from the same checkpoint were alike; None where only one was needed."""
    not_compared: tuple[str, ...] = ()
    """Metrics that tell time, and those that were to be ignored."""

    @property
    def exact(self) -> bool:
        return self.verdict == "exact"

    def as_dict(self) -> dict[str, Any]:
        """All of it in plain values, for JSON."""
        return dataclasses.asdict(self)

    def __str__(self) -> str:
        return "\n".join(_told(self))


@dataclass(frozen=True)
class Span:
    """The part of a run that is replayed: from a checkpoint to a later report, all made by one attempt."""

    start: CheckpointRecord
    last: int
    checkpoints: tuple[int, ...]
    """Those on the way that are kept."""
    size: int = 1

    @property
    def reports(self) -> range:
        return range(self.start.seq + 1, self.last + 1)

    def is_over(self, seen: Seen) -> bool:
        return seen.reports >= self.last and set(self.checkpoints) <= set(seen.commits)


def verify_resume(
    trainer: DataParallelTrainer,
    *,
    num_steps: int | None = None,
    fresh: bool = False,
    ignore: Sequence[str] = (),
    tolerance: float = 0.0,
    scratch: str | os.PathLike[str] | None = None,
) -> ResumeProof:
    """Restore a commit of the trainer's run into a shadow run, replay it, and compare.

        proof = verify_resume(trainer)
        assert proof.exact, proof

    Replays `num_steps` reports, or as many as there are until the next checkpoint. Without a run to compare with, or if
    `fresh`, the function is first trained up to its second checkpoint. `ignore` names metrics that may differ, such as
    `perf/*`; `tolerance` is how far numbers may differ, relatively and absolutely. The shadow runs lie in `scratch`, or
    where temporary files go, and are removed; the run itself is only read.
    """
    if num_steps is not None and (isinstance(num_steps, bool) or not isinstance(num_steps, int) or num_steps < 1):
        raise ValueError(f"num_steps={num_steps!r} is not a whole number of 1 or more, or None")
    if not tolerance >= 0:
        raise ValueError(f"tolerance={tolerance!r} is not 0 or more")
    layout = Layout(trainer.run_config.path)
    with tempfile.TemporaryDirectory(prefix="paceline-resume-", dir=scratch) as directory:
        place = Path(directory)
        if fresh or not layout.journal.exists():
            log.info("training a new run to compare with, in %s", place)
            try:
                original = played(trainer, place / "original", enough=lambda seen: _is_enough(seen, num_steps))
            except TrainingFailedError as error:
                return ResumeProof("unchecked", reason=f"the function fails before it is resumed: {error}")
            run = None
        else:
            original, run = recorded(layout), str(layout.root)
        chosen = _chosen(original, num_steps, trainer.scaling_config.sizes)
        if isinstance(chosen, str):
            return ResumeProof("unchecked", run, chosen)
        trainer = of_size(trainer, chosen.size)
        return dataclasses.replace(_proved(trainer, original, chosen, place, ignore, tolerance), run=run)


def _is_enough(seen: Seen, num_steps: int | None) -> bool:
    if len(seen.commits) < 2:
        return False
    return num_steps is None or seen.reports >= seen.commits[0] + num_steps


def _chosen(original: Recorded, num_steps: int | None, sizes: Sequence[int]) -> Span | str:
    """The newest part of a run that can be replayed, one with a checkpoint at its end if there is one; or why none."""
    if not original.run.checkpoints:
        return "it has no checkpoint to resume from"
    spans = [span for record in original.run.checkpoints if (span := _span(original, record, num_steps))]
    if not spans:
        return (
            "no report follows a checkpoint that was kept, in the attempt that made it. Report more checkpoints, keep "
            "more of them (num_to_keep), or compare with a new run (fresh=True, --fresh), which keeps all"
        )
    if num_steps is not None:
        most = max(len(span.reports) for span in spans)
        spans = [span for span in spans if len(span.reports) == most]
    span = max(spans, key=lambda span: (bool(span.checkpoints), span.start.seq))
    directory = original.layout.checkpoint(span.start.name)
    if problem := problem_with(directory):
        return f"{span.start.name} cannot be trusted: {problem}"
    manifest = read_manifest(directory)
    assert manifest is not None
    if manifest.world_size not in sizes:
        workers = counted(manifest.world_size, "worker")
        return f"{span.start.name} was made by {workers}, and ScalingConfig asks for {', '.join(map(str, sizes))}"
    return dataclasses.replace(span, size=manifest.world_size)


def _span(original: Recorded, record: CheckpointRecord, num_steps: int | None) -> Span | None:
    # What a later attempt reported was resumed itself, and would only be compared with its like.
    by_rank = original.metrics(record.attempt)
    if not by_rank:
        return None
    last = min(max(reports) for reports in by_rank.values())
    kept = [one.seq for one in original.run.checkpoints if one.attempt == record.attempt and one.seq > record.seq]
    if num_steps is not None:
        last = min(last, record.seq + num_steps)
    elif kept:
        last = min(last, kept[0])
    if last <= record.seq:
        return None
    return Span(record, last, tuple(seq for seq in kept if seq <= last))


def _proved(
    trainer: DataParallelTrainer, original: Recorded, span: Span, place: Path, ignore: Sequence[str], tolerance: float
) -> ResumeProof:
    told = original.metrics(span.start.attempt)
    ignored = not_compared(told, ignore)
    start = original.layout.checkpoint(span.start.name)

    def compared(one: Recorded, attempt: int | None, other: Recorded) -> list[Difference]:
        metrics = one.metrics(attempt), other.metrics()
        found = metric_differences(*metrics, span.reports, ignored=ignored, tolerance=tolerance)
        for seq in span.checkpoints:
            before, after = one.checkpoint(seq), other.checkpoint(seq)
            if before is not None and after is not None:
                found += checkpoint_differences(before, after, seq, tolerance=tolerance)
            elif before is not None:
                found.append(Difference("file", before.name, seq))
        return sorted(found, key=lambda difference: difference.report)

    def replay(name: str) -> Recorded:
        log.info("replaying %s from %s", counted(len(span.reports), "report"), span.start.name)
        return played(trainer, place / name, enough=span.is_over, start=start)

    proof = ResumeProof(
        "exact",
        checkpoint=span.start.name,
        num_reports=len(span.reports),
        num_checkpoints=len(span.checkpoints),
        not_compared=tuple(sorted(ignored)),
    )
    try:
        replayed = replay("replay")
        differences = compared(original, span.start.attempt, replayed)
        if not differences:
            return proof
        repeatable = not compared(replayed, None, replay("again"))
    except TrainingFailedError as error:
        return dataclasses.replace(proof, verdict="differs", reason=f"it fails when it is resumed: {error}")
    notes = _noted(trainer, original, span, place)
    not_restored = diagnosed(
        *notes,
        checkpoint=span.start.name,
        paths=leaf_paths(start),
        differences=differences,
        repeatable=repeatable,
    )
    return dataclasses.replace(
        proof, verdict="differs", differences=tuple(differences), not_restored=not_restored, repeatable=repeatable
    )


def _noted(
    trainer: DataParallelTrainer, original: Recorded, span: Span, place: Path
) -> tuple[dict[int, list[dict[str, Any]]], dict[int, list[dict[str, Any]]]]:
    """What workers do after the commit: of a shadow that makes it and goes on, and of one that resumes from it."""
    before = [record for record in original.run.checkpoints if record.seq < span.start.seq]
    start = original.layout.checkpoint(before[-1].name) if before else None
    first, enough = span.start.seq, span.is_over
    log.info("it differs; looking for what was not restored, with two more shadow runs")
    try:
        on = played(trainer, place / "on", enough=enough, start=start, traced=(first, place / "on.notes"))
        commit = on.checkpoint(first)
        if commit is not None:
            played(trainer, place / "resumed", enough=enough, start=commit, traced=(first, place / "resumed.notes"))
    except TrainingFailedError:
        # The replays before went well, so this is the watching: the verdict stands, and the names have to do.
        return {}, {}
    went_on, resumed = (
        {rank: trace.read(place / name, rank) for rank in range(span.size)} for name in ("on.notes", "resumed.notes")
    )
    return went_on, resumed


def _told(proof: ResumeProof) -> list[str]:
    if proof.verdict == "unchecked":
        return [f"cannot be checked: {proof.reason}", f"  run: {proof.run or 'a new one'}"]
    compared = f"{counted(proof.num_reports, 'report')} and {counted(proof.num_checkpoints, 'checkpoint')} compared"
    lines = []
    if proof.verdict == "exact":
        lines.append(f"resumes exactly: {compared}")
    elif proof.not_restored:
        parts = [one.part for one in proof.not_restored]
        listed = " and ".join([", ".join(parts[:-1]), parts[-1]] if len(parts) > 1 else parts)
        lines.append(f"does not resume exactly: {listed} {'was' if len(parts) == 1 else 'were'} not restored")
    else:
        lines.append(f"does not resume: {proof.reason}")
    about = f"  run: {proof.run or 'a new one'}, from {proof.checkpoint}"
    lines.append(about if proof.exact else f"{about}, {compared}")
    if proof.differences:
        lines.append(f"  first difference: {proof.differences[0]}")
        lines += _told_leaves(proof.differences)
    if proof.repeatable is False:
        lines.append("  two replays from that checkpoint differ from each other, too: not all that is random is seeded")
    for one in proof.not_restored:
        lines += [f"  {one.part}: {one.evidence}", f"    hint: {one.hint}"]
    if proof.differences and proof.run is not None:
        lines.append("  if the script has changed since that run, compare with a new one (fresh=True, --fresh)")
    if proof.not_compared:
        lines.append(f"  not compared: {', '.join(proof.not_compared)}")
    return lines


def _told_leaves(differences: Sequence[Difference]) -> list[str]:
    leaves = [difference for difference in differences if difference.kind in ("state", "file")]
    if not leaves:
        return []
    shown = ", ".join(str(leaf) for leaf in leaves[:_SHOWN])
    more = f" and {len(leaves) - _SHOWN} more" if len(leaves) > _SHOWN else ""
    return [f"  in the checkpoint of report {leaves[0].report}: {shown}{more}"]
