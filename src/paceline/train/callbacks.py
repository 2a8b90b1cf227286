"""Callbacks that run in the driver: `RunConfig(callbacks=[...])`.

There are three kinds, and one class may be several: `UserCallback`, the older `TrainingCallback`, and `LoggerCallback`,
which receives every report of the run, including those of earlier drivers. A callback cannot stop training: one that
raises is dropped, its traceback is logged, and training continues.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, Self

from paceline._core.lazy_imports import make_lazy_getattr

if TYPE_CHECKING:
    from paceline.train.checkpoint import Checkpoint


@dataclass(frozen=True)
class TrainRunContext:
    """The run that a callback is called for."""

    run_id: str
    run_config: Any
    train_loop_config: Any
    scaling_config: Any
    backend_config: Any
    dataset_config: Any = None
    report_number: int = 0
    """In `after_report`, the number of the report in the run, from 1."""


class UserCallback:
    """Subclass this and pass it in `RunConfig(callbacks=[...])`. It runs in the driver."""

    _run_purpose: str = ""
    """Identifies the owner of the run's reports, such as a trial; a run made for another owner is not resumed."""
    _is_for_searches: bool = False
    """Whether it has the hooks of a search, as `paceline.tune.Callback` does."""

    def after_report(
        self, run_context: TrainRunContext, metrics: list[dict[str, Any]], checkpoint: Checkpoint | None
    ) -> None:
        """Called when every rank has made its next report, with the metrics by rank and the checkpoint, if any.

        If the report has a checkpoint, this is called after the checkpoint is committed.
        """

    def after_exception(self, run_context: TrainRunContext, worker_exceptions: dict[int, BaseException]) -> None:
        """Called when workers have failed, whether or not they will be restarted."""


class TrainingCallback:
    """The older kind of callback. It also runs in the driver and is passed in `RunConfig(callbacks=[...])`."""

    def start_training(self, logdir: str, config: dict[str, Any], **info: Any) -> None:
        """Called when the run starts or resumes in `logdir`; `config` is the trainer's `train_loop_config`."""

    def handle_result(self, results: list[dict[str, Any]], **info: Any) -> None:
        """Called when every rank has made its next report, with the metrics by rank."""

    def finish_training(self, error: bool = False, **info: Any) -> None:
        """Called when the run has ended; `error` is True if it failed."""


@dataclass(frozen=True)
class LoggedReport:
    """One report of the run: the metrics of rank 0, with reduced metrics computed over all ranks."""

    number: int
    """From 1. When an attempt resumes from a checkpoint, reports after that checkpoint repeat with the same numbers."""
    attempt: int
    time: float
    """When rank 0 made the report, in seconds since the epoch."""
    metrics: dict[str, Any]
    worker: Any = None
    """The process of rank 0, if known: its `pid`, `host` and `address`, and `at`, when its function began."""


@dataclass(frozen=True)
class LoggedCheckpoint:
    """A committed checkpoint of the run: its location, not its contents."""

    number: int
    """The number of the report that made it."""
    name: str
    uri: str
    num_bytes: int
    metrics: dict[str, Any]


@dataclass(frozen=True)
class LoggedRun:
    """The run that a logger is started for."""

    context: TrainRunContext
    directory: Path
    """The run's directory on this machine. For a run in a store, files written here are uploaded at the end."""
    uri: str
    """Where the run is stored."""
    continues: bool
    """Whether an earlier driver has driven this run."""
    past: Iterator[LoggedReport]
    """All reports of earlier drivers, read lazily from the journal."""


class LoggerCallback:
    """Receives every report of the run once, in order, with metrics reduced over the ranks.

    A lost driver may have left reports unlogged; they are in `past` when the next driver starts. A logger that rewrites
    its output from `past` neither loses nor duplicates a report. If a report has a higher `attempt` than the one
    before, restarted workers made it: it replaces the report with the same number and all later ones.
    """

    def log_start(self, run: LoggedRun) -> None:
        """Called before the first report."""

    def log_report(self, report: LoggedReport) -> None:
        """Called for each report; if metrics are reduced, once all ranks have reported."""

    def log_checkpoint(self, checkpoint: LoggedCheckpoint) -> None:
        """Called once per committed checkpoint, by the driver that committed it and by no later driver."""

    def log_end(self, failed: bool) -> None:
        """Called after everything else."""

    def for_trial(self, search: str, run: str) -> Self:
        """Return a logger for one run of a trial: a search has many runs at once, and each needs a logger of its own.

        Called on a logger that has logged nothing; by default returns a copy.
        """
        return copy.deepcopy(self)


class TracingCallback:
    """Receives every event of a run, as the driver sees it; `OpenTelemetryCallback` is one."""

    def make_tracer(self, run_context: TrainRunContext, uri: str) -> RunTracer:
        """Return the tracer for one run."""
        raise NotImplementedError


class RunTracer(Protocol):
    def on_event(self, event: Any, run: Any) -> None: ...
    def on_end(self, failed: bool) -> None: ...


class PrintCallback(TrainingCallback):
    """Prints the reports of every worker."""

    def handle_result(self, results: list[dict[str, Any]], **info: Any) -> None:
        print(results, flush=True)


Callback = UserCallback | TrainingCallback | LoggerCallback | TracingCallback

__getattr__ = make_lazy_getattr(
    __name__,
    {
        "paceline.train.loggers": (
            "CSVLoggerCallback",
            "JsonLoggerCallback",
            "MLflowLoggerCallback",
            "OpenTelemetryCallback",
            "TBXLoggerCallback",
            "TensorBoardLoggerCallback",
            "WandbLoggerCallback",
        )
    },
)
