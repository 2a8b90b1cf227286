"""What a run has come to: its metrics, its checkpoints, its error. Read from the journal, during a run or after."""

from __future__ import annotations

import os
from bisect import bisect_left
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeGuard

import msgspec

from paceline._control.events import Event, Reported, WorkerReturned
from paceline._control.gathering import Report, own_metrics, reports_of, that_count
from paceline._control.recover import Replay, history_of, outline_of, told
from paceline._control.run import Run
from paceline._core.plain import looked_up, unplain
from paceline._storage.depot import Depot, DiskDepot
from paceline._storage.home import Home
from paceline._storage.retention import ranked
from paceline.train.checkpoint import Checkpoint


@dataclass
class Result:
    """What a run has come to."""

    metrics: dict[str, Any] | None
    """What was reported last: by rank 0, and reduced over all ranks where it said so."""
    checkpoint: Checkpoint | None
    """The newest one."""
    error: Exception | None
    path: str | None
    """The run's directory."""
    best_checkpoints: list[tuple[Checkpoint, dict[str, Any]]] | None = None
    """Those that were kept, with their metrics, the best last."""
    return_value: Any = None
    """What the function returned on rank 0."""
    _storage_filesystem: Any = field(default=None, repr=False)
    _depot: Depot | None = field(default=None, repr=False, compare=False)

    @property
    def filesystem(self) -> Any:
        """The `pyarrow.fs.FileSystem` that `path` is on."""
        if self._storage_filesystem is None:
            from pyarrow.fs import LocalFileSystem

            self._storage_filesystem = LocalFileSystem()
        return self._storage_filesystem

    @property
    def config(self) -> dict[str, Any] | None:
        """What the train function was called with, where `paceline.air` noted it among the metrics."""
        return self.metrics.get("config") if self.metrics is not None else None

    @property
    def log_dir(self) -> Path | None:
        """Where each worker's output is: `attempt_1/rank_0.log` and so on."""
        return self._depot.layout.logs if self._depot is not None else None

    @property
    def metrics_dataframe(self) -> Any:
        """A pandas DataFrame, one row for each report, nested metrics as `eval/loss`; None without any.

        The metrics are those of rank 0, reduced over all ranks where it said so.
        """
        if self._depot is None:
            return None
        return dataframe_of(metric_rows(told(self._depot, Replay())))

    @property
    def metrics_by_rank(self) -> list[dict[str, Any] | None] | None:
        """What each rank itself gave in the last report, by rank; None for one that had not made it."""
        if self._depot is None:
            return None
        run, history = history_of(self._depot)
        last = _last(history, run)
        if last is None:
            return None
        made = {
            e.rank: e for e in history if isinstance(e, Reported) and (e.attempt, e.seq) == (last.attempt, last.seq)
        }
        return [own_metrics(made[rank]) if rank in made else None for rank in range(max(made) + 1)]

    @property
    def metrics_dataframe_by_rank(self) -> Any:
        """The same as `metrics_dataframe`, of what every rank itself reported: one row for each `report` and `rank`."""
        if self._depot is None:
            return None
        by_rank: dict[int, list[Report]] = {}
        for event in history_of(self._depot)[1]:
            if isinstance(event, Reported):
                by_rank.setdefault(event.rank, []).append(Report((event,)))
        made = [report for reports in by_rank.values() for report in that_count(reports)]
        made.sort(key=lambda report: (report.seq, report.made[0].rank))
        return dataframe_of(
            [{"report": report.seq, "rank": report.made[0].rank, **own_metrics(report.made[0])} for report in made]
        )

    def get_best_checkpoint(self, metric: str, mode: str) -> Checkpoint:
        """The kept checkpoint with the highest (`max`) or lowest (`min`) value of a metric."""
        if mode not in ("max", "min"):
            raise ValueError(f"mode={mode!r} is neither 'max' nor 'min'")
        if not self.best_checkpoints:
            raise RuntimeError("No checkpoint exists in this run, so there is no best one")
        scored = [(looked_up(metrics, metric), checkpoint) for checkpoint, metrics in self.best_checkpoints]
        known = [(score, checkpoint) for score, checkpoint in scored if isinstance(score, int | float)]
        known = [(score, checkpoint) for score, checkpoint in known if score == score]
        if not known:
            names = sorted({name for _, metrics in self.best_checkpoints for name in flat(metrics)})
            raise RuntimeError(f"Invalid metric name {metric!r}: the checkpoints have {', '.join(names)}")
        pick = max if mode == "max" else min
        return pick(known, key=lambda pair: pair[0])[1]

    @classmethod
    def from_path(cls, path: str | os.PathLike[str], storage_filesystem: Any = None) -> Result:
        """What lies in a run's directory. Changes nothing; the error of a failed run is not restored."""
        depot = Home.of_path(os.fspath(path), storage_filesystem).depot_to_read()
        if isinstance(depot, DiskDepot) and not depot.layout.root.is_dir():
            raise RuntimeError(f"Experiment folder {depot.uri} doesn't exist.")
        run, history, reported = outline_of(depot)
        if run.attempt == 0 and not run.checkpoints:
            raise RuntimeError(f"Failed to restore the Result object: no journal in {depot.uri}, or an empty one.")
        return result_of(depot, run, history, reported)


def result_of(depot: Depot, run: Run, history: Iterable[Event], reported: Report | None = None) -> Result:
    """`reported`: the last report, where the history does not have those of all ranks."""
    history = list(history)
    reported = reported if reported is not None else _last(history, run)
    value = next((e.value for e in reversed(history) if isinstance(e, WorkerReturned) and e.rank == 0), None)
    order = ranked(run.checkpoints, run.retention.score_attribute, run.retention.score_order)
    path, filesystem = depot.root()
    return Result(
        metrics=ended(reported.metrics, run) if reported is not None else None,
        checkpoint=Checkpoint(*depot.place(run.latest)) if run.latest else None,
        error=None,
        path=path,
        best_checkpoints=[(Checkpoint(*depot.place(record)), _metrics(record.metrics)) for record in order],
        return_value=unplain(msgspec.json.decode(value)) if value is not None else None,
        _storage_filesystem=filesystem,
        _depot=depot,
    )


def metric_rows(history: Iterable[Event]) -> list[dict[str, Any]]:
    """The metrics of the run, one row for each report that still counts."""
    rows: list[dict[str, Any]] = []
    seqs: list[int] = []
    attempt = 0
    for report in reports_of(history):
        if report.attempt > attempt:  # It makes some again, from a checkpoint on: see `that_count`.
            attempt = report.attempt
            place = bisect_left(seqs, report.seq)
            del rows[place:], seqs[place:]
        seqs.append(report.seq)
        rows.append(report.metrics)
    return rows


def ended(metrics: dict[str, Any] | None, run: Run) -> dict[str, Any] | None:
    """The last metrics of a run: those that `paceline.air` fills in say whether it is done."""
    if metrics is not None and run.is_trained and metrics.get("done") is False and "_training_iteration" in metrics:
        return {**metrics, "done": True}
    return metrics


def flat(metrics: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested metrics under one name each: `eval/loss`."""
    found: dict[str, Any] = {}
    for name, value in metrics.items():
        if isinstance(value, dict) and value:
            found |= flat(value, f"{prefix}{name}/")
        else:
            found[f"{prefix}{name}"] = value
    return found


def _last(history: list[Event], run: Run) -> Report | None:
    """The last report that still counts."""
    first = next((e for e in reversed(history) if _is_first(e) and e.seq <= run.num_reports), None)
    if first is None:
        return None
    same = [e for e in history if isinstance(e, Reported) and (e.attempt, e.seq) == (first.attempt, first.seq)]
    return next(reports_of(same))


def _is_first(event: Event) -> TypeGuard[Reported]:
    return isinstance(event, Reported) and event.rank == 0


def dataframe_of(rows: list[dict[str, Any]]) -> Any:
    """One row each, nested values under one name; None without any."""
    if not rows:
        return None
    try:
        import pandas
    except ImportError:
        raise ImportError('metrics_dataframe needs pandas\n\nhint: pip install "paceline[pandas]"') from None
    return pandas.DataFrame(
        [flat(row) if any(isinstance(value, dict) for value in row.values()) else row for row in rows]
    )


def _metrics(raw: msgspec.Raw) -> dict[str, Any]:
    metrics: dict[str, Any] = unplain(msgspec.json.decode(raw))
    return metrics
