"""The outcome of a run: its metrics, checkpoints and error. Read from the journal, during a run or after it."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from paceline._control.events import Event, Reported, WorkerReturned
from paceline._control.recovery import load_history, load_outline
from paceline._control.report_aggregator import RunReport, drop_superseded_reports, iter_reports, own_metrics
from paceline._control.run import Finished, Run
from paceline._core.arguments import check_choice, flatten_dict
from paceline._core.call_errors import explain_calls
from paceline._core.lazy_imports import import_extra
from paceline._core.plain_values import decode_plain, get_metric
from paceline._storage.commit import rank_checkpoints
from paceline._storage.run_location import RunLocation
from paceline._storage.run_store import DiskRunStore, RunStore
from paceline.train.checkpoint import Checkpoint, local_filesystem
from paceline.train.metrics_table import read_metrics


@explain_calls
@dataclass(init=False)
class Result:
    """The outcome of a run."""

    metrics: dict[str, Any] | None
    """The last reported metrics: those of rank 0, with reduced metrics computed over all ranks."""
    checkpoint: Checkpoint | None
    """The newest checkpoint."""
    error: Exception | None
    path: str | None
    """The run's directory."""
    best_checkpoints: list[tuple[Checkpoint, dict[str, Any]]] | None = None
    """The checkpoints that were kept, with their metrics, the best last."""
    return_value: Any = None
    """What the function returned on rank 0."""
    status: str = "unfinished"
    """`"finished"`, `"stopped"`, `"failed"` or `"preempted"`; `"unfinished"` while the run is driven, or if its driver
    was lost."""
    _storage_filesystem: Any = field(default=None, repr=False)
    _run_store: RunStore | None = field(default=None, repr=False, compare=False)
    _metrics_dataframe: Any = field(default=None, init=False, repr=False, compare=False)

    def __init__(
        self,
        metrics: dict[str, Any] | None,
        checkpoint: Checkpoint | None,
        error: Exception | None,
        path: str | None = None,
        metrics_dataframe: Any = None,
        best_checkpoints: list[tuple[Checkpoint, dict[str, Any]]] | None = None,
        return_value: Any = None,
        status: str = "unfinished",
        _storage_filesystem: Any = None,
        _run_store: RunStore | None = None,
    ) -> None:
        """For tests and tools that need a result without a run; `fit()` and `from_path` make the others."""
        self.metrics, self.checkpoint, self.error, self.path = metrics, checkpoint, error, path
        self.best_checkpoints, self.return_value, self.status = best_checkpoints, return_value, status
        self._storage_filesystem, self._run_store = _storage_filesystem, _run_store
        self._metrics_dataframe = metrics_dataframe

    @property
    def filesystem(self) -> Any:
        """The `pyarrow.fs.FileSystem` of `path`."""
        return self._storage_filesystem if self._storage_filesystem is not None else local_filesystem()

    @property
    def config(self) -> dict[str, Any] | None:
        """The config of the train function, if `paceline.air` recorded it in the metrics."""
        return self.metrics.get("config") if self.metrics is not None else None

    @property
    def log_dir(self) -> Path | None:
        """The directory of the workers' logs: `attempt_1/rank_0.log` and so on. None if they are only in a store."""
        if self._run_store is None:
            return None
        logs = self._run_store.layout.logs
        return logs if self._run_store.locate_run()[1] is None or logs.exists() else None

    @property
    def metrics_dataframe(self) -> Any:
        """A pandas DataFrame with one row per report and nested metrics as `eval/loss`; None without reports.

        The metrics are those of rank 0, with reduced metrics computed over all ranks.
        """
        if self._run_store is None or self._metrics_dataframe is not None:
            return self._metrics_dataframe
        return read_metrics(self._run_store).to_dataframe()

    @property
    def metrics_by_rank(self) -> list[dict[str, Any] | None] | None:
        """Each rank's own metrics in the last report, by rank; None for a rank that had not made it."""
        if self._run_store is None:
            return None
        run, history = load_history(self._run_store)
        last = _find_last_report(history, run)
        if last is None:
            return None
        reports = {
            e.rank: e for e in history if isinstance(e, Reported) and (e.attempt, e.seq) == (last.attempt, last.seq)
        }
        return [own_metrics(reports[rank]) if rank in reports else None for rank in range(max(reports) + 1)]

    @property
    def metrics_dataframe_by_rank(self) -> Any:
        """Like `metrics_dataframe`, but with each rank's own metrics: one row per `report` and `rank`."""
        if self._run_store is None:
            return None
        by_rank: dict[int, list[RunReport]] = {}
        for event in load_history(self._run_store)[1]:
            if isinstance(event, Reported):
                by_rank.setdefault(event.rank, []).append(RunReport((event,)))
        current = [report for reports in by_rank.values() for report in drop_superseded_reports(reports)]
        current.sort(key=lambda report: (report.seq, report.rank_reports[0].rank))
        return to_dataframe(
            [
                {"report": report.seq, "rank": report.rank_reports[0].rank, **own_metrics(report.rank_reports[0])}
                for report in current
            ]
        )

    def get_best_checkpoint(self, metric: str, mode: str) -> Checkpoint:
        """Return the kept checkpoint with the highest (`max`) or lowest (`min`) value of a metric."""
        check_choice("mode", mode, ("max", "min"))
        if not self.best_checkpoints:
            raise RuntimeError("No checkpoint exists in this run")
        scored = [(get_metric(metrics, metric), checkpoint) for checkpoint, metrics in self.best_checkpoints]
        ranked = [(score, each) for score, each in scored if isinstance(score, int | float) and score == score]
        if not ranked:
            names = sorted({name for _, metrics in self.best_checkpoints for name in flatten_dict(metrics)})
            raise RuntimeError(f"Invalid metric name {metric!r}; the metrics are {', '.join(names)}")
        pick = max if mode == "max" else min
        return pick(ranked, key=lambda pair: pair[0])[1]

    @classmethod
    def from_path(cls, path: str | os.PathLike[str], storage_filesystem: Any = None) -> Result:
        """Read the result of a run's directory. Changes nothing; the error of a failed run is not restored."""
        store = RunLocation.from_path(os.fspath(path), storage_filesystem).open_run_store_for_reading()
        if isinstance(store, DiskRunStore) and not store.layout.root.is_dir():
            raise RuntimeError(f"Experiment folder {store.uri} doesn't exist.")
        run, history, reported = load_outline(store)
        if run.attempt == 0 and not run.checkpoints:
            raise RuntimeError(f"Failed to restore the Result object: no journal in {store.uri}, or an empty one.")
        return build_result(store, run, history, reported)


def build_result(store: RunStore, run: Run, history: Iterable[Event], reported: RunReport | None = None) -> Result:
    """`reported`: the last report, if the history does not contain the reports of all ranks."""
    history = list(history)
    reported = reported if reported is not None else _find_last_report(history, run)
    value = next((e.value for e in reversed(history) if isinstance(e, WorkerReturned) and e.rank == 0), None)
    order = rank_checkpoints(run.checkpoints, run.retention.score_attribute, run.retention.score_order)
    path, filesystem = store.locate_run()
    return Result(
        metrics=finalize_metrics(reported.metrics, run) if reported is not None else None,
        checkpoint=Checkpoint(*store.locate_checkpoint(run.latest)) if run.latest else None,
        error=None,
        path=path,
        best_checkpoints=[
            (Checkpoint(*store.locate_checkpoint(record)), decode_plain(record.metrics)) for record in order
        ],
        return_value=decode_plain(value) if value is not None else None,
        status=find_status(run),
        _storage_filesystem=filesystem,
        _run_store=store,
    )


def find_status(run: Run) -> str:
    """Return how the run ended, as `Result.status` shows it."""
    if not isinstance(run.phase, Finished):
        return "unfinished"
    if run.phase.ending == "complete" and run.pending_validations and (run.preempted or run.stop_requested):
        return "preempted" if run.preempted else "stopped"
    if run.phase.failures and run.stop_requested and run.phase.failures[0].message.startswith("KeyboardInterrupt"):
        return "stopped"  # With `num_workers=0`, Ctrl-C reaches the function itself.
    return {"complete": "finished", "interrupted": "stopped"}.get(run.phase.ending, run.phase.ending)


def finalize_metrics(metrics: dict[str, Any] | None, run: Run) -> dict[str, Any] | None:
    """Return the last metrics of a run; if it is complete, set the `done` flag that `paceline.air` adds."""
    if metrics is not None and run.is_trained and metrics.get("done") is False and "_training_iteration" in metrics:
        return {**metrics, "done": True}
    return metrics


def _find_last_report(history: list[Event], run: Run) -> RunReport | None:
    """Return the last report that is not superseded."""
    reports = [event for event in history if isinstance(event, Reported)]
    first = next((e for e in reversed(reports) if e.rank == 0 and e.seq <= run.num_reports), None)
    if first is None:
        return None
    return next(iter_reports(e for e in reports if (e.attempt, e.seq) == (first.attempt, first.seq)))


def to_dataframe(rows: list[dict[str, Any]]) -> Any:
    """Return a DataFrame of flattened rows; None without rows."""
    if not rows:
        return None
    pandas = import_extra("pandas", "a data frame of metrics")
    return pandas.DataFrame(
        [flatten_dict(row) if any(isinstance(value, dict) for value in row.values()) else row for row in rows]
    )
