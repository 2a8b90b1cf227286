"""What one trial of a search has come to.

Its status, configuration and last metrics are known from the search. Its checkpoints, its error and what each rank
reported are read from its run's directory when they are asked for.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any

import msgspec

from paceline._control.events import Event, WorkerReturned
from paceline._control.recover import history_of
from paceline._control.run import Finished, Run
from paceline._core.errors import TrainingFailedError
from paceline._core.plain import unplain
from paceline._engine.messages import CheckpointRecord
from paceline._storage.depot import Depot
from paceline._storage.home import Home
from paceline._storage.retention import score_of
from paceline.train.checkpoint import Checkpoint
from paceline.train.failures import training_error
from paceline.train.result import Result as RunResult
from paceline.train.result import dataframe_of
from paceline.tune.drive.book import home_of_run
from paceline.tune.history import History, users_first
from paceline.tune.trial import Saved, Status, Trial


class Result(RunResult):
    """What a trial has come to. All that a `paceline.train.Result` has, and what the search knows of the trial.

    A trial that was cloned from others has had several runs. Its reports are those of all of them, and the kept
    checkpoints too; `path`, `log_dir`, `return_value` and what single ranks reported are of the last one.
    """

    def __init__(
        self, trial: Trial, runs: Sequence[str], home: Home, history: History, error: Exception | None = None
    ) -> None:
        self.trial_id: str = trial.trial_id
        self.status: Status = trial.status
        self.why: str = trial.why
        """Why it was stopped or paused, or what it failed with; empty for one that returned."""
        self.lineage: tuple[Saved, ...] = trial.lineage
        """The checkpoints of other trials that it was cloned from, in order."""
        self.metrics = users_first(trial.last_result) if trial.last_result is not None else None
        self._trial = trial
        self._runs = tuple(runs)
        self._home = home
        self._history = history
        self._given_error = error

    @property
    def config(self) -> dict[str, Any]:
        """What the trial was called with; of one that was cloned, the last."""
        return dict(self._trial.config)

    # What the class below holds as attributes is found out here when it is asked for.

    @cached_property
    def path(self) -> str:  # type: ignore[override]
        """The directory of the trial's last run."""
        return self._last_depot.root()[0]

    @cached_property
    def checkpoint(self) -> Checkpoint | None:  # type: ignore[override]
        """The newest: its own, or the one that it was cloned from where it has made none since."""
        run, _ = self._read[-1]
        if run.latest is not None:
            return Checkpoint(*self._last_depot.place(run.latest))
        saved = self._trial.checkpoint
        if saved is None or saved.run == self._runs[-1]:
            return None
        depot = home_of_run(self._home, saved.run).depot_to_read()
        kept = history_of(depot)[0].checkpoints
        record = next((record for record in kept if (record.seq, record.name) == (saved.seq, saved.name)), None)
        return Checkpoint(*depot.place(record)) if record is not None else None

    @cached_property
    def best_checkpoints(self) -> list[tuple[Checkpoint, dict[str, Any]]]:  # type: ignore[override]
        """Those that were kept, of all its runs, with their metrics, the best last."""
        retention = self._read[-1][0].retention
        sign = 1 if retention.score_order == "max" else -1

        def standing(life: int, record: CheckpointRecord) -> tuple[bool, float, int, int]:
            score = score_of(record, retention.score_attribute) if retention.score_attribute is not None else None
            return score is not None, sign * score if score is not None else 0, life, record.seq

        kept = [(life, record) for life, (run, _) in enumerate(self._read) for record in run.checkpoints]
        kept.sort(key=lambda pair: standing(*pair))
        return [
            (Checkpoint(*self._depots[life].place(record)), unplain(msgspec.json.decode(record.metrics)))
            for life, record in kept
        ]

    @cached_property
    def error(self) -> Exception | None:  # type: ignore[override]
        """What the trial failed with: the exception itself where this process had it, else one that says the same."""
        if self.status != "ERROR":
            return None
        if self._given_error is not None:
            return self._given_error
        run, _ = self._read[-1]
        if isinstance(run.phase, Finished) and run.phase.ending == "failed" and run.phase.failures:
            return training_error(self._last_depot, run, [], self)
        return TrainingFailedError(self.why, self)

    @cached_property
    def return_value(self) -> Any:
        """What the function returned on rank 0."""
        events = self._read[-1][1]
        value = next((e.value for e in reversed(events) if isinstance(e, WorkerReturned) and e.rank == 0), None)
        return unplain(msgspec.json.decode(value)) if value is not None else None

    @property
    def metrics_dataframe(self) -> Any:
        """A pandas DataFrame, one row for each report of all the trial's runs, nested metrics as `eval/loss`, the
        configuration as `config/lr`; None without any. `training_iteration` of one that was cloned goes on from the
        checkpoint that it was cloned from."""
        return dataframe_of(self._history.of(self.trial_id))

    def __repr__(self) -> str:
        why = f", why={self.why!r}" if self.why else ""
        told = f"trial_id={self.trial_id!r}, status={self.status!r}{why}, metrics={self.metrics!r}"
        return f"Result({told}, path={self.path!r})"

    @cached_property
    def _depots(self) -> list[Depot]:
        return [home_of_run(self._home, run).depot_to_read() for run in self._runs]

    @property
    def _last_depot(self) -> Depot:
        return self._depots[-1]

    @property
    def _depot(self) -> Depot:  # type: ignore[override]
        return self._last_depot

    @cached_property
    def _storage_filesystem(self) -> Any:
        return self._last_depot.root()[1]

    @cached_property
    def _read(self) -> list[tuple[Run, list[Event]]]:
        """Its runs, as they lie there."""
        return [history_of(depot) for depot in self._depots]
