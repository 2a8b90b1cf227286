"""Runs of a trainer in a temporary directory: started from a copy of a commit, stopped after some reports.

The trainer's own run is read and never written. A shadow run has no callbacks and no retries, keeps all checkpoints,
and prints nothing.
"""

from __future__ import annotations

import contextlib
import dataclasses
import io
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from paceline._control.events import Committed, Event, Reported
from paceline._control.recovery import load_history
from paceline._control.run import Run
from paceline._core.errors import StorageError, TrainingInterrupt
from paceline._core.plain_values import decode_plain, from_plain
from paceline._storage.commit import read_manifest
from paceline._storage.files import LocalFiles
from paceline._storage.run_layout import MANIFEST, METADATA, RunLayout
from paceline._storage.run_store import DiskRunStore
from paceline.train.config import CheckpointConfig, FailureConfig
from paceline.train.driver.run_spec import RunHooks
from paceline.train.driver.trainer_arguments import TrainerArguments, run_trainer
from paceline.train.resume_proof.trace import TracedFunction

StopCondition = Callable[["ShadowProgress"], bool]


@dataclass(frozen=True)
class ShadowProgress:
    """The progress of a run."""

    num_reports: int
    """The number of reports that every rank has made."""
    committed_seqs: tuple[int, ...]
    """The reports that became checkpoints."""


@dataclass(frozen=True)
class RecordedRun:
    """A run as its journal and checkpoints record it."""

    layout: RunLayout
    run: Run
    reports: tuple[Reported, ...]

    def collect_metrics(self, attempt: int | None = None) -> dict[int, dict[int, dict[str, Any]]]:
        """Return metrics by rank and report, of one attempt; by default, of the last attempt that made each report."""
        metrics: dict[int, dict[int, dict[str, Any]]] = {}
        for report in self.reports:
            if attempt in (None, report.attempt):
                # Arrays cannot be compared with `==` like other values.
                values = from_plain(decode_plain(report.metrics), as_lists=True)
                metrics.setdefault(report.rank, {})[report.seq] = values
        return metrics

    def find_checkpoint(self, seq: int) -> Path | None:
        """Return the directory of a report's checkpoint, if it is kept."""
        names = [record.name for record in self.run.checkpoints if record.seq == seq]
        return self.layout.checkpoint(names[0]) if names else None


def load_recorded_run(layout: RunLayout) -> RecordedRun:
    run, history = load_history(DiskRunStore(LocalFiles(), layout))
    return RecordedRun(layout, run, tuple(event for event in history if isinstance(event, Reported)))


def with_fixed_size(arguments: TrainerArguments, size: int) -> TrainerArguments:
    """Return the arguments for exactly `size` workers; those of a trainer that is not elastic as they are."""
    scaling = arguments.scaling_config
    if len(scaling.sizes) == 1:
        return arguments
    return arguments.replace(scaling_config=dataclasses.replace(scaling, num_workers=size))


def run_shadow(
    arguments: TrainerArguments,
    storage: Path,
    *,
    enough: StopCondition,
    start: Path | None = None,
    traced: tuple[int, Path] | None = None,
) -> RecordedRun:
    """Run what a trainer would, from a checkpoint or from the beginning, until `enough` or its end.

    `traced` is the report from which its workers record notes, and the directory for the notes.
    """
    changes: dict[str, Any] = {}
    if traced is not None:
        first, directory = traced
        directory.mkdir()
        changes["train_loop_per_worker"] = TracedFunction(arguments.train_loop_per_worker, first, directory)
        changes["train_loop_config"] = arguments.loop_config
    run_config = dataclasses.replace(
        arguments.run_config,
        storage_path=storage,
        callbacks=(),
        checkpoint_config=CheckpointConfig(),
        failure_config=FailureConfig(),
        detached=False,
        if_exists="resume",
        on_stop="return",
    )
    environment = dataclasses.replace(arguments.environment, files=LocalFiles())
    until = _StopWhenEnough(enough)
    layout = RunLayout(run_config.path)
    if start is not None:
        _copy_commit(start, layout)
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        try:
            run_trainer(
                arguments.replace(run_config=run_config, environment=environment, **changes),
                RunHooks(observer_factories=(until.attach,)),
            )
        except TrainingInterrupt:  # It would say how to continue the shadow.
            raise KeyboardInterrupt from None
    recorded = load_recorded_run(layout)
    if not until.has_requested_stop and not recorded.run.is_trained:
        raise KeyboardInterrupt  # `paceline stop`: nobody else asks for a stop.
    return recorded


class _StopWhenEnough:
    """Requests a stop, like Ctrl-C, once there is enough: all ranks then agree on a report to stop at."""

    def __init__(self, enough: StopCondition) -> None:
        self.has_requested_stop = False
        self._should_stop = enough
        self._stop: Callable[[], None] = lambda: None
        self._num_reports_by_rank: dict[int, int] = {}
        self._commits: tuple[int, ...] = ()

    def attach(self, stop: Callable[[], None]) -> Self:
        self._stop = stop
        return self

    def on_event(self, event: Event, run: Run) -> None:
        if isinstance(event, Reported):
            self._num_reports_by_rank[event.rank] = event.seq
        elif isinstance(event, Committed):
            self._commits += (event.record.seq,)
        reports = min(self._num_reports_by_rank.values()) if len(self._num_reports_by_rank) == run.size else 0
        if not self.has_requested_stop and self._should_stop(ShadowProgress(reports, self._commits)):
            self.has_requested_stop = True
            self._stop()

    def tick(self, run: Run, now: float) -> None:
        pass


def _copy_commit(source: Path, layout: RunLayout) -> None:
    manifest = read_manifest(source)
    if manifest is None:
        raise StorageError(f"{source} is not a committed checkpoint")
    files = LocalFiles()
    target = layout.checkpoint(manifest.record.name)
    files.make_dir(target)
    notes = [METADATA] if (source / METADATA).exists() else []
    for name in [*(entry.path for entry in manifest.files), *notes, MANIFEST]:
        files.make_dir((target / name).parent)
        files.copy(source / name, target / name, name)
