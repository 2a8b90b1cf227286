"""`ExperimentAnalysis`: the trials of a search as `tune.run` returns them; a view of a `ResultGrid`."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import PurePosixPath
from typing import Any

from paceline._core.arguments import bad_value, check_choice, flatten_dict
from paceline._core.lazy_imports import explain_module, import_extra
from paceline._core.plain_values import get_metric
from paceline.train.checkpoint import Checkpoint
from paceline.train.result import to_dataframe
from paceline.tune.result_grid import ResultGrid
from paceline.tune.results.result import Result
from paceline.tune.results.scopes import MODES, is_better
from paceline.tune.trial import Trial

__all__ = ["ExperimentAnalysis"]


class ExperimentAnalysis:
    """The trials of a search, and the best of them. `tune.run` returns it; or give it the directory of a search.

        analysis = ExperimentAnalysis("runs/my-search", default_metric="loss", default_mode="min")
        analysis.best_config, analysis.dataframe()

    `default_metric` and `default_mode` are those of the search if they are left out. `trials` limits it to some trials.
    """

    def __init__(
        self,
        experiment_checkpoint_path: str | os.PathLike[str],
        storage_filesystem: Any = None,
        trials: Sequence[Trial] | None = None,
        default_metric: str | None = None,
        default_mode: str | None = None,
    ) -> None:
        path = os.fspath(experiment_checkpoint_path)
        if PurePosixPath(path).suffix in (".json", ".jsonl"):  # Ray's path of the state file, or ours of the journal.
            path = path.rpartition("/")[0] or "."
        self._start(ResultGrid.from_path(path, storage_filesystem), trials, default_metric, default_mode)

    @classmethod
    def from_results(cls, grid: ResultGrid) -> ExperimentAnalysis:
        """Return the analysis of results in memory, those of `Tuner.fit()`."""
        analysis = cls.__new__(cls)
        analysis._start(grid, None, None, None)
        return analysis

    def _start(self, grid: ResultGrid, trials: Sequence[Trial] | None, metric: str | None, mode: str | None) -> None:
        if mode is not None:
            check_choice("default_mode", mode, MODES)
        if metric is None and mode is not None:
            raise ValueError(f"default_mode={mode!r} needs a default_metric")
        self.result_grid = grid if trials is None else grid.select_trials([trial.trial_id for trial in trials])
        """The same trials as results."""
        self.default_metric = metric if metric is not None else grid.metric
        self.default_mode = mode if mode is not None else grid.mode

    @property
    def experiment_path(self) -> str:
        """The search's directory."""
        return self.result_grid.experiment_path

    @property
    def trials(self) -> list[Trial]:
        """All trials, in the order they were created."""
        return self.result_grid.trials

    def get_best_trial(
        self,
        metric: str | None = None,
        mode: str | None = None,
        scope: str = "last",
        filter_nan_and_inf: bool = True,
    ) -> Trial | None:
        """Return the trial that `ResultGrid.get_best_result` finds; None if no trial has the metric."""
        metric, mode = self._resolve(metric, mode)
        try:
            best = self.result_grid.get_best_result(metric, mode, scope, filter_nan_and_inf)
        except RuntimeError:  # No trial has a value to compare.
            return None
        return next(trial for trial in self.trials if trial.trial_id == best.trial_id)

    @property
    def best_trial(self) -> Trial:
        """The trial with the best last value of the default metric."""
        metric, mode = self._resolve(None, None)
        best = self.result_grid.get_best_result(metric, mode)
        return next(trial for trial in self.trials if trial.trial_id == best.trial_id)

    def get_best_config(
        self, metric: str | None = None, mode: str | None = None, scope: str = "last"
    ) -> dict[str, Any] | None:
        """Return the configuration of the best trial; None if no trial has the metric."""
        best = self.get_best_trial(metric, mode, scope)
        return dict(best.config) if best is not None else None

    @property
    def best_config(self) -> dict[str, Any]:
        return dict(self.best_trial.config)

    def get_best_logdir(self, metric: str | None = None, mode: str | None = None, scope: str = "last") -> str | None:
        """Return the directory of the best trial; None if no trial has the metric."""
        best = self.get_best_trial(metric, mode, scope)
        return self._find_result(best).path if best is not None else None

    @property
    def best_logdir(self) -> str:
        return self._find_result(self.best_trial).path

    @property
    def best_result(self) -> dict[str, Any]:
        """The last metrics of the best trial."""
        return self._find_result(self.best_trial).metrics

    @property
    def best_result_df(self) -> Any:
        """The last metrics of the best trial, as a DataFrame with one row."""
        return _to_indexed_frame({self.best_trial.trial_id: self.best_result})

    @property
    def best_dataframe(self) -> Any:
        """All reports of the best trial, as a DataFrame."""
        return self._find_result(self.best_trial).metrics_dataframe

    @property
    def best_checkpoint(self) -> Checkpoint | None:
        """The best kept checkpoint of the best trial; None if it has none."""
        return self.get_best_checkpoint(self.best_trial)

    def get_best_checkpoint(
        self, trial: Trial | str, metric: str | None = None, mode: str | None = None
    ) -> Checkpoint | None:
        """Return the kept checkpoint of a trial with the best metric; `trial` is a trial, its id or its directory."""
        metric, mode = self._resolve(metric, mode)
        best: tuple[Checkpoint, float] | None = None
        for checkpoint, value in self._list_scored_checkpoints(trial, metric):
            if best is None or not is_better(best[1], value, mode):  # Of equals, the newest.
                best = checkpoint, value
        return best[0] if best is not None else None

    def get_last_checkpoint(
        self, trial: Trial | str | None = None, metric: str = "training_iteration", mode: str = "max"
    ) -> Checkpoint | None:
        """Return the newest checkpoint of a trial; without one, of the trial that has made the most iterations."""
        trial = trial if trial is not None else self.get_best_trial(metric, mode)
        return self.get_best_checkpoint(trial, "training_iteration", "max") if trial is not None else None

    def get_trial_checkpoints_paths(self, trial: Trial | str, metric: str | None = None) -> list[tuple[str, Any]]:
        """Return the paths of a trial's kept checkpoints, each with the value of a metric."""
        metric = metric if metric is not None else self.default_metric or "training_iteration"
        return [(checkpoint.path, value) for checkpoint, value in self._list_scored_checkpoints(trial, metric)]

    def get_all_configs(self, prefix: bool = False) -> dict[str, dict[str, Any]]:
        """Return the configurations by trial id; with `prefix`, flattened, with keys such as `config/lr`."""
        if not prefix:
            return {trial.trial_id: dict(trial.config) for trial in self.trials}
        return {trial.trial_id: flatten_dict({"config": dict(trial.config)}) for trial in self.trials}

    def dataframe(self, metric: str | None = None, mode: str | None = None) -> Any:
        """A DataFrame with one row per trial: its last metrics, or the report with the best value of a metric."""
        if mode is not None and metric is None:
            metric = self.default_metric
        return self.result_grid.get_dataframe(metric, (mode or self.default_mode) if metric is not None else None)

    @property
    def results(self) -> dict[str, dict[str, Any]]:
        """The last metrics of each trial, by its id."""
        return {result.trial_id: result.metrics for result in self.result_grid}

    @property
    def results_df(self) -> Any:
        """The last metrics of all trials, as a DataFrame with a row per trial id."""
        return _to_indexed_frame(self.results)

    @property
    def trial_dataframes(self) -> dict[str, Any]:
        """All reports of each trial, as a DataFrame, by trial id."""
        frames = {result.trial_id: result.metrics_dataframe for result in self.result_grid}
        return {trial_id: frame if frame is not None else _empty_frame() for trial_id, frame in frames.items()}

    def fetch_trial_dataframes(self) -> dict[str, Any]:
        return self.trial_dataframes

    def set_filetype(self, file_type: str | None = None) -> None:
        """Check Ray's choice of the file that reports are read from. They are read from the search's journal."""
        check_choice("file_type", file_type, ("json", "csv", None))

    def stats(self) -> dict[str, Any]:
        """How long the search has run, its trials by status, and the last event's time."""
        return self.result_grid.stats()

    def runner_data(self) -> dict[str, Any]:
        """What the search was started with, and `stats()`."""
        search = {"metric": self.default_metric, "mode": self.default_mode, "experiment_path": self.experiment_path}
        return {**search, **self.stats()}

    def _find_result(self, trial: Trial | str) -> Result:
        if isinstance(trial, Trial):
            trial = trial.trial_id
        for result in self.result_grid:
            if trial == result.trial_id or (trial == result.path and "/" in trial):
                return result
        raise bad_value("trial", "a trial of this search, its id or its directory", trial)

    def _list_scored_checkpoints(self, trial: Trial | str, metric: str) -> list[tuple[Checkpoint, float]]:
        """Return the kept checkpoints that have the metric, from the oldest to the newest."""
        kept = sorted(self._find_result(trial).kept_checkpoints, key=lambda each: each[2])
        values = [get_metric({"training_iteration": number, **metrics}, metric) for _, metrics, number in kept]
        return [(each[0], value) for each, value in zip(kept, values, strict=True) if isinstance(value, int | float)]

    def _resolve(self, metric: str | None, mode: str | None) -> tuple[str, str]:
        metric = metric if metric is not None else self.default_metric
        mode = mode if mode is not None else self.default_mode
        if metric is None or mode is None:
            raise ValueError(
                f"a metric and a mode are needed to find the best trial, got metric={metric!r}, mode={mode!r}\n\n"
                'hint: tune.run(..., metric="loss", mode="min"), or pass them here'
            )
        check_choice("mode", mode, MODES)
        return metric, mode


def _to_indexed_frame(rows: Mapping[str, Mapping[str, Any]]) -> Any:
    frame = to_dataframe([{**metrics, "trial_id": trial_id} for trial_id, metrics in rows.items()])
    return frame.set_index("trial_id") if frame is not None else _empty_frame()


def _empty_frame() -> Any:
    return import_extra("pandas", "ExperimentAnalysis").DataFrame()


explain_module(__name__)
