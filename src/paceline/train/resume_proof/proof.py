"""`verify_resume`: compare a run with a replay that resumes from one of its own commits.

First comes the verdict: a replay from an earlier commit is compared with the run's journal and its next checkpoint.
Only if they differ comes the diagnosis: a second replay (is it repeatable?), then one shadow run that continues past
the commit and one that resumes from it, both recording notes.
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

from paceline._core.arguments import check_int, check_number, join_first
from paceline._core.checkpoint_records import CheckpointRecord
from paceline._core.errors import TrainingFailedError
from paceline._storage.commit import find_problem, read_manifest
from paceline._storage.run_layout import RunLayout
from paceline._view.formatting import format_count
from paceline.train.driver.trainer_arguments import TrainerArguments
from paceline.train.resume_proof import compare, shadow, trace
from paceline.train.resume_proof.diagnosis import NotRestored, diagnose
from paceline.train.trainer import DataParallelTrainer

log = logging.getLogger("paceline.resume_proof")

Verdict = Literal["exact", "differs", "unchecked"]

_MAX_LEAVES = 5


@dataclass(frozen=True)
class ResumeProof:
    """Whether a run resumes exactly, and if not, why. `print(proof)` explains it."""

    verdict: Verdict
    """`unchecked` if there is nothing to compare; `reason` says why."""
    run: str | None = None
    """The directory of the original run, which is only read. None: a run made for the proof."""
    reason: str = ""
    checkpoint: str = ""
    """The checkpoint that was restored."""
    num_reports: int = 0
    """How many reports after it were compared, on every rank."""
    num_checkpoints: int = 0
    differences: tuple[compare.Difference, ...] = ()
    """In order of occurrence."""
    not_restored: tuple[NotRestored, ...] = ()
    repeatable: bool | None = None
    """Whether two replays from the same checkpoint were equal; None if only one was needed."""
    not_compared: tuple[str, ...] = ()
    """Metrics that depend on time, and ignored ones."""

    @property
    def exact(self) -> bool:
        return self.verdict == "exact"

    def as_dict(self) -> dict[str, Any]:
        """Return everything as plain values, for JSON."""
        return dataclasses.asdict(self)

    def __str__(self) -> str:
        return "\n".join(_format_proof(self))


@dataclass(frozen=True)
class ReplaySpan:
    """The replayed part of a run: from a checkpoint to a later report, all made by one attempt."""

    start: CheckpointRecord
    last: int
    checkpoints: tuple[int, ...]
    """The kept checkpoints within it."""
    size: int = 1

    @property
    def reports(self) -> range:
        return range(self.start.seq + 1, self.last + 1)

    def is_covered(self, progress: shadow.ShadowProgress) -> bool:
        return progress.num_reports >= self.last and set(self.checkpoints) <= set(progress.committed_seqs)


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

    Replays `num_steps` reports, or as many as there are until the next checkpoint. If there is no run to compare with,
    or if `fresh`, the function is first trained up to its second checkpoint. `ignore` names metrics that may differ,
    such as `perf/*`; `tolerance` is how far numbers may differ, relatively and absolutely. The shadow runs are created
    in `scratch`, or in the directory for temporary files, and removed; the run itself is only read.
    """
    check_int("num_steps", num_steps, at_least=1, optional=True)
    check_number("tolerance", tolerance, at_least=0)
    arguments = trainer.trainer_arguments
    layout = RunLayout(arguments.run_config.path)

    def has_enough(progress: shadow.ShadowProgress) -> bool:
        seqs = progress.committed_seqs
        return len(seqs) > 1 and (num_steps is None or progress.num_reports >= seqs[0] + num_steps)

    with tempfile.TemporaryDirectory(prefix="paceline-resume-", dir=scratch) as scratch_name:
        directory = Path(scratch_name)
        if fresh or not layout.journal.exists():
            log.info("training a new run to compare with, in %s", directory)
            try:
                original = shadow.run_shadow(arguments, directory / "original", enough=has_enough)
            except TrainingFailedError as error:
                return ResumeProof("unchecked", reason=f"the function fails before it is resumed: {error}")
            run = None
        else:
            original, run = shadow.load_recorded_run(layout), str(layout.root)
        chosen = _choose_span(original, num_steps, arguments.scaling_config.sizes)
        if isinstance(chosen, str):
            return ResumeProof("unchecked", run, chosen)
        arguments = shadow.with_fixed_size(arguments, chosen.size)
        return dataclasses.replace(_prove(arguments, original, chosen, directory, ignore, tolerance), run=run)


def _choose_span(original: shadow.RecordedRun, num_steps: int | None, sizes: Sequence[int]) -> ReplaySpan | str:
    """Return the newest replayable part of a run, preferably one that ends with a checkpoint; or why there is none."""
    if not original.run.checkpoints:
        return "the run has no checkpoint to resume from"
    spans = [span for record in original.run.checkpoints if (span := _build_span(original, record, num_steps))]
    if not spans:
        return (
            "no report follows a kept checkpoint in the attempt that made it. Report more checkpoints, keep "
            "more of them (num_to_keep), or compare with a new run (fresh=True, --fresh), which keeps all"
        )
    if num_steps is not None:
        most = max(len(span.reports) for span in spans)
        spans = [span for span in spans if len(span.reports) == most]
    span = max(spans, key=lambda span: (bool(span.checkpoints), span.start.seq))
    directory = original.layout.checkpoint(span.start.name)
    if problem := find_problem(directory):
        return f"{span.start.name} cannot be trusted: {problem}"
    manifest = read_manifest(directory)
    assert manifest is not None
    if manifest.world_size not in sizes:
        workers = format_count(manifest.world_size, "worker")
        return f"{span.start.name} was made by {workers}, but ScalingConfig requests {', '.join(map(str, sizes))}"
    return dataclasses.replace(span, size=manifest.world_size)


def _build_span(original: shadow.RecordedRun, record: CheckpointRecord, num_steps: int | None) -> ReplaySpan | None:
    # A later attempt's reports come after a resume themselves: they would be compared with another resumed run.
    by_rank = original.collect_metrics(record.attempt)
    if not by_rank:
        return None
    last = min(max(reports) for reports in by_rank.values())
    later_seqs = [one.seq for one in original.run.checkpoints if one.attempt == record.attempt and one.seq > record.seq]
    if num_steps is not None:
        last = min(last, record.seq + num_steps)
    elif later_seqs:
        last = min(last, later_seqs[0])
    if last <= record.seq:
        return None
    return ReplaySpan(record, last, tuple(seq for seq in later_seqs if seq <= last))


def _prove(
    arguments: TrainerArguments,
    original: shadow.RecordedRun,
    span: ReplaySpan,
    directory: Path,
    ignore: Sequence[str],
    tolerance: float,
) -> ResumeProof:
    ignored = compare.find_ignored_metrics(original.collect_metrics(span.start.attempt), ignore)
    start = original.layout.checkpoint(span.start.name)

    def find_differences(
        run: shadow.RecordedRun, attempt: int | None, other_run: shadow.RecordedRun
    ) -> list[compare.Difference]:
        metrics = run.collect_metrics(attempt), other_run.collect_metrics()
        differences = compare.find_metric_differences(*metrics, span.reports, ignored=ignored, tolerance=tolerance)
        for seq in span.checkpoints:
            before, after = run.find_checkpoint(seq), other_run.find_checkpoint(seq)
            if before is not None and after is not None:
                differences += compare.find_checkpoint_differences(before, after, seq, tolerance=tolerance)
            elif before is not None:
                differences.append(compare.Difference("file", before.name, seq))
        return sorted(differences, key=lambda difference: difference.report)

    def replay(name: str) -> shadow.RecordedRun:
        log.info("replaying %s from %s", format_count(len(span.reports), "report"), span.start.name)
        return shadow.run_shadow(arguments, directory / name, enough=span.is_covered, start=start)

    proof = ResumeProof(
        "exact",
        checkpoint=span.start.name,
        num_reports=len(span.reports),
        num_checkpoints=len(span.checkpoints),
        not_compared=tuple(sorted(ignored)),
    )
    try:
        replayed = replay("replay")
        differences = find_differences(original, span.start.attempt, replayed)
        if not differences:
            return proof
        repeatable = not find_differences(replayed, None, replay("again"))
    except TrainingFailedError as error:
        return dataclasses.replace(proof, verdict="differs", reason=f"the function fails when resumed: {error}")
    notes = _trace_shadow_runs(arguments, original, span, directory)
    paths = compare.list_leaf_paths(start)
    not_restored = diagnose(
        *notes, checkpoint=span.start.name, paths=paths, differences=differences, repeatable=repeatable
    )
    return dataclasses.replace(
        proof, verdict="differs", differences=tuple(differences), not_restored=not_restored, repeatable=repeatable
    )


def _trace_shadow_runs(
    arguments: TrainerArguments, original: shadow.RecordedRun, span: ReplaySpan, directory: Path
) -> tuple[dict[int, list[dict[str, Any]]], dict[int, list[dict[str, Any]]]]:
    """Return the notes of a shadow run that makes the commit and continues, and of one that resumes from it."""
    before = [record for record in original.run.checkpoints if record.seq < span.start.seq]
    start = original.layout.checkpoint(before[-1].name) if before else None

    def run_traced(name: str, start: Path | None) -> shadow.RecordedRun:
        traced = span.start.seq, directory / f"{name}.notes"
        return shadow.run_shadow(arguments, directory / name, enough=span.is_covered, start=start, traced=traced)

    log.info("results differ; making two more shadow runs to find what was not restored")
    try:
        commit = run_traced("on", start).find_checkpoint(span.start.seq)
        if commit is not None:
            run_traced("resumed", commit)
    except TrainingFailedError:
        # The earlier replays succeeded, so tracing caused this: keep the verdict, and diagnose by names.
        return {}, {}
    continued, resumed = (
        {rank: trace.read_notes(directory / f"{name}.notes", rank) for rank in range(span.size)}
        for name in ("on", "resumed")
    )
    return continued, resumed


def _format_proof(proof: ResumeProof) -> list[str]:
    if proof.verdict == "unchecked":
        return [f"cannot be checked: {proof.reason}", f"  run: {proof.run or 'a new one'}"]
    checkpoints = format_count(proof.num_checkpoints, "checkpoint")
    compared = f"{format_count(proof.num_reports, 'report')} and {checkpoints} compared"
    lines = []
    if proof.verdict == "exact":
        lines.append(f"resumes exactly: {compared}")
    elif proof.not_restored:
        parts = [one.part for one in proof.not_restored]
        listed = " and ".join([", ".join(parts[:-1]), parts[-1]] if len(parts) > 1 else parts)
        lines.append(f"does not resume exactly: {listed} {'was' if len(parts) == 1 else 'were'} not restored")
    else:
        lines.append(f"does not resume: {proof.reason}")
    run_line = f"  run: {proof.run or 'a new one'}, from {proof.checkpoint}"
    lines.append(run_line if proof.exact else f"{run_line}, {compared}")
    if proof.differences:
        lines.append(f"  first difference: {proof.differences[0]}")
        leaves = [difference for difference in proof.differences if difference.kind in ("state", "file")]
        if leaves:
            shown = join_first([str(leaf) for leaf in leaves], _MAX_LEAVES)
            lines.append(f"  in the checkpoint of report {leaves[0].report}: {shown}")
    if proof.repeatable is False:
        lines.append("  two replays from that checkpoint also differ: not every random generator is seeded")
    for one in proof.not_restored:
        lines += [f"  {one.part}: {one.evidence}", f"    hint: {one.hint}"]
    if proof.differences and proof.run is not None:
        lines.append("  if the script has changed since that run, compare with a new one (fresh=True, --fresh)")
    if proof.not_compared:
        lines.append(f"  not compared: {', '.join(proof.not_compared)}")
    return lines
