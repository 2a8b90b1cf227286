"""ResultGrid: the results of a search, trial by trial.

`Tuner.fit()` makes it from the search in memory, `from_path` from the search's journal, which is read once more to
access more than the last results. Directories of trials are read only to access a checkpoint or an error: it is as fast
for a thousand trials as for ten.
"""

from __future__ import annotations

import copy
import os
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, overload

from paceline._core.arguments import bad_value, check_choice, flatten_dict
from paceline._core.call_errors import explain_calls
from paceline._core.lazy_imports import import_extra
from paceline._core.plain_values import get_metric
from paceline._storage.run_location import RunLocation
from paceline._storage.run_store import DiskRunStore, RunStore
from paceline.train.result import to_dataframe
from paceline.tune.driver.events import Event
from paceline.tune.driver.search_state import Search
from paceline.tune.driver.search_storage import check_is_search, iter_search_events
from paceline.tune.results import report_history, scopes
from paceline.tune.results.result import Result, make_trial_result
from paceline.tune.space.space_codec import rebuild_param_space
from paceline.tune.trial import Trial

if TYPE_CHECKING:
    from paceline.tune.analysis import ExperimentAnalysis
    from paceline.tune.plots import Kind, PlottedTrial

_NAMED = 12
"""How many metrics an error message lists."""
_ADDED_COLUMNS = (*report_history.ADDED_METRICS, "status")
_LAST_COLUMNS = ("why", "logdir")


@explain_calls
class ResultGrid:
    """The results of a search's trials, in the order they were created, failed ones included.

        results = tuner.fit()
        results.get_best_result("loss", "min").config

    `results[0]`, `len(results)` and iteration give a `Result` for each trial.
    """

    _search: Search
    _location: RunLocation
    _store: RunStore
    _history: report_history.TrialReportHistory
    _trials: list[Trial]
    _errors: dict[str, Exception]
    _results: dict[str, Result]

    def __init__(self, experiment_analysis: ExperimentAnalysis) -> None:
        """Show the trials of an analysis, which `tune.run` returns, as results."""
        vars(self).update(vars(experiment_analysis.result_grid))

    @classmethod
    def from_path(cls, path: str | os.PathLike[str], storage_filesystem: Any = None) -> ResultGrid:
        """Load the results of the search in a directory, even if it is running or was copied. Changes nothing."""
        location = RunLocation.from_path(os.fspath(path), storage_filesystem)
        store = location.open_run_store_for_reading()
        if isinstance(store, DiskRunStore) and not store.layout.root.is_dir():
            raise RuntimeError(f"cannot read the search: {store.uri} does not exist")
        check_is_search(location, store)
        search = report_history.replay_search(iter_search_events(store.read_journal(), store.uri))
        if not search.num_drivers:
            raise RuntimeError(f"cannot read the search: {store.uri} has no journal, or an empty one")
        return make_result_grid(search, location, kind=cls)

    @property
    def trials(self) -> list[Trial]:
        """The trials themselves."""
        return list(self._trials)

    @property
    def metric(self) -> str | None:
        """The metric of `TuneConfig`."""
        return self._search.metric

    @property
    def mode(self) -> str | None:
        """The mode of `TuneConfig`."""
        return self._search.mode

    def select_trials(self, trial_ids: Iterable[str]) -> ResultGrid:
        """Return the results of some of the trials."""
        chosen = set(trial_ids)
        selected = copy.copy(self)
        selected._trials = [trial for trial in self._trials if trial.trial_id in chosen]
        return selected

    def stats(self) -> dict[str, Any]:
        """How long the search has run, its trials by status, and the time of its last event."""
        search = self._search
        statuses = Counter(trial.status for trial in self._trials)
        return {"time_total_s": search.elapsed_s(search.last_at), "trials": dict(statuses), "timestamp": search.last_at}

    @property
    def experiment_path(self) -> str:
        """The search's directory."""
        return self._store.locate_run()[0]

    @property
    def filesystem(self) -> Any:
        """The `pyarrow.fs.FileSystem` that `experiment_path` is on."""
        filesystem = self._store.locate_run()[1]
        if filesystem is None:
            from pyarrow.fs import LocalFileSystem

            filesystem = LocalFileSystem()
        return filesystem

    @property
    def status(self) -> str:
        """How the search ended: `"finished"`, `"stopped"`, `"failed"` or `"preempted"`, or `"unfinished"`, as a run."""
        search = self._search
        if search.started_at is not None or not search.num_drivers:
            return "unfinished"
        if search.is_complete:
            return "finished"
        return {"interrupted": "stopped", "preempted": "preempted"}.get(search.why, "failed")

    @property
    def errors(self) -> list[Exception]:
        """The errors of all failed trials."""
        errors = (self._result(trial).error for trial in self._trials if trial.status == "ERROR")
        return [error for error in errors if error is not None]

    @property
    def num_errors(self) -> int:
        """How many trials failed."""
        return sum(trial.status == "ERROR" for trial in self._trials)

    @property
    def num_terminated(self) -> int:
        """How many trials ended without failing: they returned or were stopped."""
        return sum(trial.status == "TERMINATED" for trial in self._trials)

    def __len__(self) -> int:
        return len(self._trials)

    @overload
    def __getitem__(self, index: int) -> Result: ...
    @overload
    def __getitem__(self, index: slice) -> list[Result]: ...
    def __getitem__(self, index: int | slice) -> Result | list[Result]:
        if isinstance(index, slice):
            return [self._result(trial) for trial in self._trials[index]]
        try:
            return self._result(self._trials[index])
        except IndexError:
            raise IndexError(f"no result {index}: the search has {len(self)} trials") from None

    def __iter__(self) -> Iterator[Result]:
        return (self._result(trial) for trial in self._trials)

    def __repr__(self) -> str:
        return (
            f"ResultGrid({len(self)} trials: {self.num_terminated} terminated, {self.num_errors} failed, "
            f"in {self._store.uri})"
        )

    def get_best_result(
        self,
        metric: str | None = None,
        mode: str | None = None,
        scope: str = "last",
        filter_nan_and_inf: bool = True,
    ) -> Result:
        """The result of the trial with the lowest (`min`) or highest (`max`) value of a metric.

        `metric` and `mode` default to those of `TuneConfig`; a nested metric is `eval/loss`. `scope` selects the value
        a trial is judged by: its `last`, the average of all it reported (`avg`) or of its last ones (`last-5-avg`,
        `last-10-avg`), or the best it ever reported (`all`). With `filter_nan_and_inf`, a trial whose value is nan or
        infinite is never the best; without, nan is worse than any number.
        """
        check_choice("scope", scope, scopes.SCOPES)
        if metric is None and self._search.metric is None and len(self._trials) == 1:
            return self._result(self._trials[0])
        metric, mode = self._resolve_metric(metric, mode, "get_best_result")
        scored = (
            (trial, score)
            for trial in self._trials
            if (score := self._score(trial, metric, mode, scope, filter_nan_and_inf)) is not None
        )
        leading = scopes.select_best(scored, mode)
        if leading is None:
            raise RuntimeError(self._explain_no_best(metric, scope))
        return self._result(leading[0])

    def get_dataframe(self, filter_metric: str | None = None, filter_mode: str | None = None) -> Any:
        """A pandas DataFrame with one row per trial.

        Columns are its last metrics, nested ones as `eval/loss`, its configuration as `config/lr`, its `status`, why it
        was stopped or failed, and its directory as `logdir`. With `filter_metric`, each row is the report in which that
        metric was lowest (`filter_mode="min"`) or highest. The metrics are empty for a trial that has not reported
        anything, or not that metric.
        """
        if filter_metric is None and filter_mode is not None:
            raise ValueError(f"filter_mode={filter_mode!r} needs a filter_metric")
        if filter_metric is not None:
            filter_metric, filter_mode = self._resolve_metric(filter_metric, filter_mode, "get_dataframe", "filter_")
            self._check_reported(filter_metric)
        rows = [self._build_row(trial, filter_metric, filter_mode) for trial in self._trials]
        frame = to_dataframe(rows)
        if frame is None:
            frame = import_extra("pandas", "get_dataframe").DataFrame()
        return frame[sorted(frame.columns, key=_column_rank)]

    def plot(self, kind: Kind = "all", metric: str | None = None, mode: str | None = None) -> Any:
        """Plot the search with matplotlib.

        `kind` is the quality of each configuration (`parallel`), which parameters matter (`importance`), each trial's
        curve (`curves`), or `all` of these. `metric` and `mode` default to those of `TuneConfig`. The returned figure
        has `savefig(path)`.
        """
        from paceline.tune import plots

        metric, mode = self._resolve_metric(metric, mode, "plot")
        self._check_reported(metric)
        plotted = [self._to_plotted_trial(trial, metric) for trial in self._trials]
        return plots.plot(plotted, kind=kind, metric=metric, mode=mode, space=self._space())

    def _space(self) -> Mapping[str, Any] | None:
        """The space as described when the search began; None if it contains something that has no description."""
        try:
            space: Mapping[str, Any] = rebuild_param_space(self._search.description["space"])
        except (KeyError, TypeError, ValueError):
            return None
        return space

    def _to_plotted_trial(self, trial: Trial, metric: str) -> PlottedTrial:
        from paceline.tune.plots import PlottedTrial

        curve = [(int(row["training_iteration"]), float(value)) for row, value in self._values(trial, metric)]
        return PlottedTrial(
            trial_id=trial.trial_id,
            config=dict(trial.config),
            history=curve,
            value=curve[-1][1] if curve else None,
            status="STOPPED" if trial.status == "TERMINATED" and trial.why else trial.status,
        )

    def _result(self, trial: Trial) -> Result:
        result = self._results.get(trial.trial_id)
        if result is None:
            runs = self._search.trial_records[trial.trial_id].runs
            error = self._errors.get(trial.trial_id)
            result = make_trial_result(trial, runs, self._location, self._history, error)
            self._results[trial.trial_id] = result
        return result

    def _resolve_metric(self, metric: str | None, mode: str | None, method: str, prefix: str = "") -> tuple[str, str]:
        metric = metric if metric is not None else self._search.metric
        mode = mode if mode is not None else self._search.mode
        if metric is None:
            raise ValueError(
                f"{method}() needs a metric: the search's TuneConfig has none\n\n"
                f'hint: {method}({prefix}metric="loss", {prefix}mode="min"){self._reported_names()}'
            )
        if not isinstance(metric, str):
            raise bad_value(f"{prefix}metric", "the name of a metric", metric)
        if mode is None:
            raise ValueError(
                f"{method}() needs a mode for {metric!r}: the search's TuneConfig has none\n\n"
                f'hint: use {prefix}mode="min" if less is better, else "max"'
            )
        check_choice(f"{prefix}mode", mode, scopes.MODES)
        return metric, mode

    def _score(self, trial: Trial, metric: str, mode: str, scope: str, only_finite: bool) -> float | None:
        if trial.last_result is None:
            return None
        last = scopes.get_metric_value(trial.last_result, metric)
        values = [last] if scope == "last" and last is not None else [value for _, value in self._values(trial, metric)]
        return scopes.score_values(values, scope, mode, only_finite=only_finite)

    def _values(self, trial: Trial, metric: str) -> list[tuple[dict[str, Any], float]]:
        rows = self._history.reports_of(trial.trial_id)
        return [(row, value) for row in rows if (value := scopes.get_metric_value(row, metric)) is not None]

    def _build_row(self, trial: Trial, metric: str | None, mode: str | None) -> dict[str, Any]:
        if metric is None or mode is None:
            metrics = (
                report_history.reorder_user_metrics_first(trial.last_result) if trial.last_result is not None else {}
            )
        else:
            leading = scopes.select_best(self._values(trial, metric), mode)
            metrics = leading[0] if leading is not None else {}
        return {
            **{name: value for name, value in metrics.items() if name != "config"},
            "trial_id": trial.trial_id,
            "status": trial.status,
            "why": trial.why,
            "logdir": self._result(trial).path,
            "config": metrics.get("config", dict(trial.config)),
        }

    def _check_reported(self, metric: str) -> None:
        if not any(self._values(trial, metric) for trial in self._trials):
            raise RuntimeError(self._explain_no_best(metric, "all"))

    def _explain_no_best(self, metric: str, scope: str) -> str:
        if not self._trials:
            return "the search has no trials"
        if all(trial.last_result is None for trial in self._trials):
            failed = f" ({self.num_errors} failed, see results.errors)" if self.num_errors else ""
            return f"no trial has reported anything{failed}"
        if any(self._values(trial, metric) for trial in self._trials):
            return (
                f"no trial has a finite value of {metric!r} in scope={scope!r}\n\n"
                "hint: filter_nan_and_inf=False includes values that are nan or infinite"
            )
        values = (get_metric(trial.last_result, metric) for trial in self._trials)
        if (value := next((value for value in values if value is not None), None)) is not None:
            return f"{metric!r} must be a number, but a trial reported {value!r:.200}"
        return f"no trial has reported {metric!r}{self._reported_names()}"

    def _reported_names(self) -> str:
        names: dict[str, None] = {}
        for trial in self._trials:
            if trial.last_result is not None:
                own = {
                    name: value for name, value in trial.last_result.items() if name not in report_history.ADDED_METRICS
                }
                names |= dict.fromkeys(flatten_dict(own))
        if not names:
            return ""
        more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
        return f"; the metrics are {', '.join(list(names)[:_NAMED])}{more}"


def make_result_grid(
    search: Search,
    location: RunLocation,
    errors: Mapping[str, Exception] | None = None,
    decode_config: report_history.ConfigDecoder = report_history.decode_without_objects,
    events: Iterable[Event] | None = None,
    *,
    kind: type[ResultGrid] = ResultGrid,
) -> ResultGrid:
    """`location` is that of the search; `errors` are the exceptions this process has seen, by trial.

    `events` are those of the search; None: read them from its journal when they are needed.
    """
    grid = kind.__new__(kind)
    grid._search = search
    grid._location = location
    grid._store = location.open_run_store_for_reading()
    grid._history = report_history.TrialReportHistory(grid._store, decode_config, events)
    grid._trials = list(search.trials.values())
    grid._errors = dict(errors or {})
    grid._results = {}
    return grid


def _column_rank(column: str) -> int:
    """Sort key for columns: reported metrics, added ones, configuration, then why the trial ended and where it is."""
    if column.startswith("config/"):
        return len(_ADDED_COLUMNS) + 1
    if column in _LAST_COLUMNS:
        return len(_ADDED_COLUMNS) + 2
    return _ADDED_COLUMNS.index(column) + 1 if column in _ADDED_COLUMNS else 0
