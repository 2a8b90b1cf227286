"""What a run has come to: its metrics, its checkpoints, its error. Read from the journal, during a run or after."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from paceline._control.events import Event, Reported, WorkerReturned
from paceline._control.recover import history_of
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
    """What rank 0 reported last."""
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
    def log_dir(self) -> Path | None:
        """Where each worker's output is: `attempt_1/rank_0.log` and so on."""
        return self._depot.layout.logs if self._depot is not None else None

    @property
    def metrics_dataframe(self) -> Any:
        """A pandas DataFrame, one row for each report of rank 0, nested metrics as `eval/loss`; None without any."""
        if self._depot is None:
            return None
        rows = metric_rows(history_of(self._depot)[1])
        if not rows:
            return None
        try:
            import pandas
        except ImportError:
            raise ImportError('metrics_dataframe needs pandas\n\nhint: pip install "paceline[pandas]"') from None
        return pandas.DataFrame([_flat(row) for row in rows])

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
            names = sorted({name for _, metrics in self.best_checkpoints for name in _flat(metrics)})
            raise RuntimeError(f"Invalid metric name {metric!r}: the checkpoints have {', '.join(names)}")
        pick = max if mode == "max" else min
        return pick(known, key=lambda pair: pair[0])[1]

    @classmethod
    def from_path(cls, path: str | os.PathLike[str], storage_filesystem: Any = None) -> Result:
        """What lies in a run's directory. Changes nothing; the error of a failed run is not restored."""
        depot = Home.of_path(os.fspath(path), storage_filesystem).depot_to_read()
        if isinstance(depot, DiskDepot) and not depot.layout.root.is_dir():
            raise RuntimeError(f"Experiment folder {depot.uri} doesn't exist.")
        run, history = history_of(depot)
        if run.attempt == 0 and not run.checkpoints:
            raise RuntimeError(f"Failed to restore the Result object: no journal in {depot.uri}, or an empty one.")
        return result_of(depot, run, history)


def result_of(depot: Depot, run: Run, history: Iterable[Event], error: Exception | None = None) -> Result:
    history = list(history)
    reported = next((e for e in reversed(history) if _counts(e, run)), None)
    value = next((e.value for e in reversed(history) if isinstance(e, WorkerReturned) and e.rank == 0), None)
    order = ranked(run.checkpoints, run.retention.score_attribute, run.retention.score_order)
    path, filesystem = depot.root()
    return Result(
        metrics=ended(_metrics(reported.metrics), run) if isinstance(reported, Reported) else None,
        checkpoint=Checkpoint(*depot.place(run.latest)) if run.latest else None,
        error=error,
        path=path,
        best_checkpoints=[(Checkpoint(*depot.place(record)), _metrics(record.metrics)) for record in order],
        return_value=unplain(msgspec.json.decode(value)) if value is not None else None,
        _storage_filesystem=filesystem,
        _depot=depot,
    )


def metric_rows(history: Iterable[Event]) -> list[dict[str, Any]]:
    """The metrics of rank 0, one row for each report that still counts.

    An attempt that continues from a checkpoint makes the reports after it again; those of the attempt before give way.
    """
    rows: list[tuple[int, msgspec.Raw]] = []
    attempt = 0
    for event in history:
        if isinstance(event, Reported) and event.rank == 0:
            if event.attempt > attempt:
                attempt = event.attempt
                rows = [row for row in rows if row[0] < event.seq]
            rows.append((event.seq, event.metrics))
    return [_metrics(raw) for _, raw in rows]


def ended(metrics: dict[str, Any] | None, run: Run) -> dict[str, Any] | None:
    """The last metrics of a run: those that `paceline.air` fills in say whether it is done."""
    if metrics is not None and run.is_trained and metrics.get("done") is False and "_training_iteration" in metrics:
        return {**metrics, "done": True}
    return metrics


def _counts(event: Event, run: Run) -> bool:
    return isinstance(event, Reported) and event.rank == 0 and event.seq <= run.num_reports


def _metrics(raw: msgspec.Raw) -> dict[str, Any]:
    metrics: dict[str, Any] = unplain(msgspec.json.decode(raw))
    return metrics


def _flat(metrics: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for name, value in metrics.items():
        if isinstance(value, dict) and value:
            flat |= _flat(value, f"{prefix}{name}/")
        else:
            flat[f"{prefix}{name}"] = value
    return flat
