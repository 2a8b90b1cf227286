"""What a user's own code may watch from the driver: `RunConfig(callbacks=[...])`.

Three kinds, which one class may be of together: `UserCallback`, the older `TrainingCallback`, and `LoggerCallback`,
which gets every report of the run and is told what was reported before. Training does not wait for a callback's
opinion: one that raises is dropped with its traceback, and training goes on.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, Self

from paceline._core.lazy import on_demand

if TYPE_CHECKING:
    from paceline.train.checkpoint import Checkpoint


@dataclass(frozen=True)
class TrainRunContext:
    """The run that a callback is told about."""

    run_id: str
    run_config: Any
    train_loop_config: Any
    scaling_config: Any
    backend_config: Any
    dataset_config: Any = None
    report_number: int = 0
    """In `after_report`, which report of the run it is, from 1."""


class UserCallback:
    """Subclass this and pass it in `RunConfig(callbacks=[...])`. It runs in the driver."""

    _made_for: str = ""
    """Whose run it is, where its reports count as somebody's own: one that was made for others is not continued."""

    def after_report(
        self, run_context: TrainRunContext, metrics: list[dict[str, Any]], checkpoint: Checkpoint | None
    ) -> None:
        """Every rank has made its next report: here are its own metrics, by rank, and the checkpoint if there was one.

        With a checkpoint, it is called once that is committed.
        """

    def after_exception(self, run_context: TrainRunContext, worker_exceptions: dict[int, BaseException]) -> None:
        """Workers have failed, whether or not they will be restarted."""


class TrainingCallback:
    """The older kind. It runs in the driver, too, and is passed in `RunConfig(callbacks=[...])`."""

    def start_training(self, logdir: str, config: dict[str, Any], **info: Any) -> None:
        """The run begins, or continues, in this directory; the config is the trainer's `train_loop_config`."""

    def handle_result(self, results: list[dict[str, Any]], **info: Any) -> None:
        """Every rank has made its next report: here are its own metrics, by rank."""

    def finish_training(self, error: bool = False, **info: Any) -> None:
        """The run has ended; `error` where it failed."""


@dataclass(frozen=True)
class LoggedReport:
    """One report of the run: of rank 0, and of all ranks where metrics are reduced."""

    number: int
    """From 1. The reports after a checkpoint that an attempt continued from come again, under the same numbers."""
    attempt: int
    time: float
    """When rank 0 made it, in seconds since the epoch."""
    metrics: dict[str, Any]


@dataclass(frozen=True)
class LoggedCheckpoint:
    """A checkpoint of the run that is committed: where it is, not what is in it."""

    number: int
    """Of the report that made it."""
    name: str
    uri: str
    num_bytes: int
    metrics: dict[str, Any]


@dataclass(frozen=True)
class LoggedRun:
    """A run as a logger finds it."""

    context: TrainRunContext
    directory: Path
    """The run's own on this machine. Of a run in a store, what loggers write here is uploaded at its end."""
    uri: str
    """Where the run is kept."""
    continues: bool
    """An earlier driver had it."""
    past: Iterator[LoggedReport]
    """All reports of earlier drivers, read from the journal as they are asked for."""


class LoggerCallback:
    """Gets every report of the run once, in order, with metrics reduced over the ranks.

    What a lost driver had reported and perhaps not logged is in `past` when the next one starts: whoever writes that
    anew loses and doubles nothing. A report whose `attempt` is higher than that of the one before was made by restarted
    workers: it replaces the one of the same number, and those after it.
    """

    def log_start(self, run: LoggedRun) -> None:
        """Before the first report."""

    def log_report(self, report: LoggedReport) -> None:
        """All ranks have made it, where metrics are reduced."""

    def log_checkpoint(self, checkpoint: LoggedCheckpoint) -> None:
        """It is committed. Told once by the driver that committed it, and not again by one that continues the run."""

    def log_end(self, failed: bool) -> None:
        """Nothing follows."""

    def for_trial(self, search: str, run: str) -> Self:
        """Another one for the run of a trial: a search has many, at once, and each is logged by a logger of its own.

        Asked of one that has logged nothing; by default a copy.
        """
        return copy.deepcopy(self)


class TracingCallback:
    """Is told all that happens to a run as the driver sees it; `OpenTelemetryCallback` is one."""

    def watcher(self, run_context: TrainRunContext, uri: str) -> Watcher:
        """Who is told about one run."""
        raise NotImplementedError


class Watcher(Protocol):
    def saw(self, event: Any, run: Any) -> None: ...
    def ended(self, failed: bool) -> None: ...


class PrintCallback(TrainingCallback):
    """Prints what every worker reports."""

    def handle_result(self, results: list[dict[str, Any]], **info: Any) -> None:
        print(results, flush=True)


Callback = UserCallback | TrainingCallback | LoggerCallback | TracingCallback

__getattr__ = on_demand(
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
