"""The result of one trial of a search.

Its status, configuration and last metrics come from the search. Its checkpoints, its error and the reports of each rank
are read from its run's directory on demand.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any

import msgspec

from paceline._control.events import Event, WorkerReturned
from paceline._control.recovery import load_history
from paceline._control.run import Finished, Run
from paceline._core.call_errors import explain_calls
from paceline._core.checkpoint_records import CheckpointRecord
from paceline._core.errors import TrainingFailedError
from paceline._core.plain_values import from_plain
from paceline._storage.commit import checkpoint_score
from paceline._storage.run_location import RunLocation
from paceline._storage.run_store import RunStore
from paceline.train.checkpoint import Checkpoint
from paceline.train.driver.failures import make_training_error
from paceline.train.result import Result as RunResult
from paceline.train.result import to_dataframe
from paceline.tune.driver.search_storage import trial_run_location
from paceline.tune.results.report_history import TrialReportHistory, reorder_user_metrics_first
from paceline.tune.trial import Status, Trial, TrialCheckpoint


@explain_calls
class Result(RunResult):
    """The result of a trial: everything in a `paceline.train.Result`, plus what the search knows about the trial.

    A cloned trial has had several runs. Its reports and kept checkpoints come from all of them; `path`, `log_dir`,
    `return_value` and the reports of single ranks come from the last one.
    """

    trial_id: str = ""
    status: Status = "TERMINATED"
    why: str = ""
    """Why it was stopped or paused, or the error it failed with; empty if it returned."""
    lineage: tuple[TrialCheckpoint, ...] = ()
    """The checkpoints of other trials it was cloned from, in order."""
    metrics: dict[str, Any]
    """Its last report; empty if it has made none."""
    _trial: Trial
    _runs: tuple[str, ...] = ()
    _location: RunLocation
    _history: TrialReportHistory
    _raised_error: Exception | None

    def __init__(
        self,
        metrics: dict[str, Any] | None,
        checkpoint: Checkpoint | None,
        error: Exception | None,
        path: str | None,
        metrics_dataframe: Any = None,
        best_checkpoints: list[tuple[Checkpoint, dict[str, Any]]] | None = None,
        _storage_filesystem: Any = None,
    ) -> None:
        """Make one from its parts. Those of a search come from `Tuner.fit()`."""
        self.metrics = dict(metrics or {})
        self.status = "ERROR" if error is not None else "TERMINATED"
        self.why = str(error) if error is not None else ""
        self._trial = Trial(self.trial_id, self.metrics.get("config") or {})
        vars(self).update(  # Over what is computed on access otherwise.
            checkpoint=checkpoint,
            error=error,
            path=path,
            metrics_dataframe=metrics_dataframe,
            best_checkpoints=best_checkpoints,
            return_value=None,
            _storage_filesystem=_storage_filesystem,
        )

    @property
    def config(self) -> dict[str, Any]:
        """The trial's configuration; for a cloned trial, the last one."""
        return dict(self._trial.config)

    # Attributes of the base class are computed on access here.

    @cached_property
    def path(self) -> str:  # type: ignore[override]
        """The directory of the trial's last run."""
        return self._run_stores[-1].locate_run()[0]

    @cached_property
    def checkpoint(self) -> Checkpoint | None:  # type: ignore[override]
        """The newest checkpoint: the trial's own, or the one it was cloned from if it has saved none since."""
        run, _ = self._load_runs[-1]
        if run.latest is not None:
            return Checkpoint(*self._run_store.locate_checkpoint(run.latest))
        saved = self._trial.checkpoint
        if saved is None or saved.run == self._runs[-1]:
            return None
        store = trial_run_location(self._location, saved.run).open_run_store_for_reading()
        records = load_history(store)[0].checkpoints
        record = next((record for record in records if (record.seq, record.name) == (saved.seq, saved.name)), None)
        return Checkpoint(*store.locate_checkpoint(record)) if record is not None else None

    @cached_property
    def best_checkpoints(self) -> list[tuple[Checkpoint, dict[str, Any]]]:  # type: ignore[override]
        """The kept checkpoints of all its runs, with their metrics, best last."""
        return [(checkpoint, metrics) for checkpoint, metrics, _ in self.kept_checkpoints]

    @cached_property
    def kept_checkpoints(self) -> list[tuple[Checkpoint, dict[str, Any], int]]:
        """Like `best_checkpoints`, each with the `training_iteration` at which it was saved."""
        retention = self._load_runs[-1][0].retention
        sign = 1 if retention.score_order == "max" else -1
        # A clone's runs count from what they were cloned from, a restarted trial's from zero.
        firsts = {len(self._runs) - number: saved.iteration for number, saved in enumerate(reversed(self.lineage), 1)}

        def rank(index: int, record: CheckpointRecord) -> tuple[bool, float, int, int]:
            attribute = retention.score_attribute
            score = checkpoint_score(record, attribute) if attribute is not None else None
            return score is not None, sign * score if score is not None else 0, index, record.seq

        records = [(index, record) for index, (run, _) in enumerate(self._load_runs) for record in run.checkpoints]
        records.sort(key=lambda pair: rank(*pair))
        located = (self._run_stores[index].locate_checkpoint(record) for index, record in records)
        metrics = (from_plain(msgspec.json.decode(record.metrics)) for _, record in records)
        iterations = (firsts.get(index, 0) + record.seq for index, record in records)
        return [(Checkpoint(*place), *rest) for place, *rest in zip(located, metrics, iterations, strict=True)]

    @cached_property
    def error(self) -> Exception | None:  # type: ignore[override]
        """The error the trial failed with: the original exception if this process had it, else an equivalent one."""
        if self.status != "ERROR":
            return None
        if self._raised_error is not None:
            return self._raised_error
        run, _ = self._load_runs[-1]
        if isinstance(run.phase, Finished) and run.phase.ending == "failed" and run.phase.failures:
            return make_training_error(self._run_store, run, [], self)
        return TrainingFailedError(self.why, self)

    @cached_property
    def return_value(self) -> Any:
        """The function's return value on rank 0."""
        events = self._load_runs[-1][1]
        value = next((e.value for e in reversed(events) if isinstance(e, WorkerReturned) and e.rank == 0), None)
        return from_plain(msgspec.json.decode(value)) if value is not None else None

    @cached_property
    def metrics_dataframe(self) -> Any:
        """A pandas DataFrame with one row per report of all the trial's runs; None without reports.

        Nested metrics are columns like `eval/loss`, the configuration like `config/lr`. For a cloned trial,
        `training_iteration` continues from the checkpoint it was cloned from.
        """
        return to_dataframe(self._history.reports_of(self.trial_id))

    def __repr__(self) -> str:
        why = f", why={self.why!r}" if self.why else ""
        fields = f"trial_id={self.trial_id!r}, status={self.status!r}{why}, metrics={self.metrics!r}"
        return f"Result({fields}, path={self.path!r})"

    @cached_property
    def _run_stores(self) -> list[RunStore]:
        return [trial_run_location(self._location, run).open_run_store_for_reading() for run in self._runs]

    @property
    def _run_store(self) -> Any:  # type: ignore[override]
        return self._run_stores[-1] if self._runs else None

    @cached_property
    def _storage_filesystem(self) -> Any:
        return self._run_store.locate_run()[1]

    @cached_property
    def _load_runs(self) -> list[tuple[Run, list[Event]]]:
        return [load_history(store) for store in self._run_stores]


def make_trial_result(
    trial: Trial,
    runs: Sequence[str],
    location: RunLocation,
    history: TrialReportHistory,
    error: Exception | None = None,
) -> Result:
    result = Result.__new__(Result)
    result.trial_id, result.status = trial.trial_id, trial.status
    result.why, result.lineage = trial.why, trial.lineage
    result.metrics = reorder_user_metrics_first(trial.last_result) if trial.last_result is not None else {}
    result._trial = trial
    result._runs = tuple(runs)
    result._location = location
    result._history = history
    result._raised_error = error
    return result
