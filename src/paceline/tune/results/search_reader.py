"""Reads a search from its journal, incrementally, and builds the data of its plots."""

from __future__ import annotations

import math
from array import array
from collections.abc import Mapping, Sequence
from typing import Any

from msgspec.structs import replace

from paceline._control import journal
from paceline._control.events import Retention
from paceline._core.arguments import check_choice
from paceline._core.codec import valid_prefix
from paceline._core.errors import StorageError
from paceline._core.plain_values import to_plain
from paceline._view.journal.report_table import flatten_metrics
from paceline._view.model import BestMetric, SearchDetail, State, Summary
from paceline._view.run_reader import JournalFollower
from paceline._view.run_values import choose_metric, to_json_values
from paceline.tune import plots
from paceline.tune.driver.events import SearchEnded, SearchStarted, TrialReported
from paceline.tune.driver.search_state import Search
from paceline.tune.driver.search_storage import SEARCH_CODEC
from paceline.tune.results.report_history import ADDED_METRICS, decode_without_objects
from paceline.tune.space.space_codec import rebuild_param_space
from paceline.tune.trial import Trial

_MAX_CURVE_POINTS = 500


class SearchReader(JournalFollower):
    def _restart(self) -> None:
        self._search: Search | None = None
        self._began_at = 0.0
        self._is_over = False
        self._curves: dict[str, dict[str, tuple[array[int], array[float]]]] = {}
        """By trial and metric: iterations and values."""

    @property
    def is_ended(self) -> bool:
        return self._is_over

    @property
    def has_lines(self) -> bool:
        return self._search is not None

    def summary(self, id: str = ".") -> Summary:
        with self._lock:
            search = self._require_search()
            best = search.best
            leading = search.trials.get(best.trial_id) if best is not None else None
            result = leading.last_result if leading is not None else None
            num_over = sum(trial.is_over for trial in search.trials.values())
            failed = [trial for trial in search.trials.values() if trial.status == "ERROR"]
            return Summary(
                id=id,
                name=self.location.name,
                path=self._uri,
                kind="search",
                state=self._search_state(search),
                began_at=self._began_at,
                ended_at=search.last_at if self._is_over or not self._is_held else None,
                updated_at=search.last_at,
                attempt=search.num_drivers,
                num_workers=len(search.trials_with_status("RUNNING")) if self._is_held and not self._is_over else 0,
                num_reports=num_over,
                num_failures=len(failed),
                metrics=to_json_values(dict(flatten_metrics(_drop_filled(result)))),
                best=BestMetric(search.metric, "max" if search.mode == "max" else "min", best.value, best.iteration)
                if best is not None and search.metric is not None
                else None,
                progress=_compute_progress(search, num_over, is_complete=self._is_over and search.is_complete),
                failure=failed[-1].why or None if failed else None,
            )

    def trial_names(self) -> dict[str, str]:
        """Return the names that the user gave trials, by run."""
        with self._lock:
            search = self._require_search()
            named = ((trial, search.trial_records[trial.trial_id]) for trial in search.trials.values())
            return {run: trial.label for trial, record in named if trial.label != trial.trial_id for run in record.runs}

    def detail(
        self, id: str, trials: Sequence[Summary], metric: str | None = None, mode: str | None = None
    ) -> SearchDetail:
        """Return the search with its runs, which the caller has listed.

        `metric` and `mode` default to those of the search, or to what the names of its metrics suggest.
        """
        with self._lock:
            search = self._require_search()
            metric, mode = self._choose_metric(search, metric, mode)
            plotted = [self._to_plotted_trial(trial, metric) for trial in search.trials.values()] if metric else []
            space = _load_space(search)
            if metric is not None and mode is not None:
                trial_ids = {record.run: trial_id for trial_id, record in search.trial_records.items()}
                trials = [
                    replace(trial, best=self._find_best(trial_ids.get(_run_of(trial), ""), metric, mode))
                    for trial in trials
                ]
            configs = {
                run: _to_plain_config(search.trials[trial].config)
                for trial, record in search.trial_records.items()
                for run in record.runs
            }
        return SearchDetail(
            summary=self.summary(id),
            metric=metric,
            mode=mode,
            trials=tuple(trials),
            configs={trial.id: configs[run] for trial in trials if (run := _run_of(trial)) in configs},
            **(_build_plots(plotted, metric, mode, space) if metric is not None and mode is not None else {}),
        )

    def _read_new_lines(self) -> bool:
        changed = False
        if self._tail.reset_if_replaced():
            self._restart()
            changed = True
        while data := self._tail.read_new():
            num_bytes = 0
            for payload in valid_prefix(data):
                num_bytes += len(payload) + 10
                self._apply_line(payload)
                changed = True
            self._tail.mark_read(data, num_bytes)
            if num_bytes < len(data):
                break
        return changed

    def _apply_line(self, payload: bytes) -> None:
        event = journal.decode_line(payload, self._uri, codec=SEARCH_CODEC)
        if self._search is None:
            if not isinstance(event, SearchStarted):
                raise StorageError(f"{self._uri} has no journal of a search")
            self._search, self._began_at = Search(decode_without_objects), event.at
        search = self._search
        is_new = isinstance(event, TrialReported) and search.is_new_report(event.trial, event.run, event.seq)
        search.apply(event)
        if is_new and isinstance(event, TrialReported):
            self._add_curve_points(search.trials[event.trial])
        for act in getattr(event, "then", ()):
            search.apply_decision(act)
        self._is_over = isinstance(event, SearchEnded)

    def _add_curve_points(self, trial: Trial) -> None:
        curves = self._curves.setdefault(trial.trial_id, {})
        for name, value in flatten_metrics(_drop_filled(trial.last_result)):
            if type(value) is float or type(value) is int:
                iterations, values = curves.setdefault(name, (array("q"), array("d")))
                try:
                    values.append(value)
                except OverflowError:  # An integer larger than any float.
                    continue
                iterations.append(trial.iteration)

    def _require_search(self) -> Search:
        if self._search is None:
            self.refresh()
        if self._search is None:
            raise StorageError(f"{self._uri} has no journal of a search, or an empty one")
        return self._search

    def _search_state(self, search: Search) -> State:
        if self._is_over:
            return "finished" if search.is_complete else "stopped"
        if not self._is_held:
            return "lost"
        return "running" if any(trial.status != "PENDING" for trial in search.trials.values()) else "starting"

    def _choose_metric(self, search: Search, metric: str | None, mode: str | None) -> tuple[str | None, str | None]:
        if mode is not None:
            check_choice("mode", mode, ("min", "max"))
        metric = metric if metric is not None else search.metric
        if metric is None:
            names = list(dict.fromkeys(name for curves in self._curves.values() for name in curves))
            choice = choose_metric(names, Retention())
            return (choice[0], mode or choice[1]) if choice is not None else (None, None)
        return metric, mode or (search.mode if metric == search.metric else None) or "min"

    def _find_best(self, trial_id: str, metric: str, mode: str) -> BestMetric | None:
        """Return the best finite value of a trial; None if it has none."""
        iterations, values = self._curves.get(trial_id, {}).get(metric, ((), ()))
        finite = [at for at, value in enumerate(values) if math.isfinite(value)]
        if not finite:
            return None
        best = (max if mode == "max" else min)(finite, key=values.__getitem__)
        return BestMetric(metric, "max" if mode == "max" else "min", values[best], iterations[best])

    def _to_plotted_trial(self, trial: Trial, metric: str) -> plots.PlottedTrial:
        iterations, values = self._curves.get(trial.trial_id, {}).get(metric, (array("q"), array("d")))
        every = max(1, -(-len(values) // _MAX_CURVE_POINTS))
        last = len(values) - 1
        history = [(iterations[at], values[at]) for at in range(len(values)) if at % every == 0 or at == last]
        return plots.PlottedTrial(
            trial_id=trial.trial_id,
            config=dict(trial.config),
            history=history,
            value=values[-1] if len(values) else None,
            status="STOPPED" if trial.status == "TERMINATED" and trial.why else trial.status,
        )


def _build_plots(
    trials: list[plots.PlottedTrial], metric: str, mode: str, space: Mapping[str, Any] | None
) -> dict[str, dict[str, Any]]:
    try:
        importance = plots.importance(trials, metric, mode, space)
    except ImportError as missing:
        importance = {"metric": metric, "mode": mode, "parameters": [], "note": str(missing)}
    parallel, curves = plots.parallel_coordinates(trials, metric, mode, space), plots.curves(trials, metric, mode)
    return {"parallel": parallel, "importance": importance, "curves": curves}


def _compute_progress(search: Search, num_over: int, *, is_complete: bool) -> float | None:
    if is_complete:
        return 1.0
    expected = len(search.trials) if search.is_exhausted else max(search.num_samples, len(search.trials))
    return min(1.0, num_over / expected) if expected > 0 and search.num_samples > 0 else None


def _run_of(trial: Summary) -> str:
    return trial.path.rstrip("/").rpartition("/")[2]


def _drop_filled(result: Mapping[str, Any] | None) -> dict[str, Any]:
    return {name: value for name, value in (result or {}).items() if name not in ADDED_METRICS}


def _to_plain_config(config: Mapping[str, Any]) -> dict[str, Any]:
    plain: dict[str, Any] = {}
    for name, value in config.items():
        try:
            plain[name] = to_plain(value)
        except (TypeError, ValueError):
            plain[name] = repr(value)
    return plain


def _load_space(search: Search) -> Mapping[str, Any] | None:
    try:
        space: Mapping[str, Any] = rebuild_param_space(search.description["space"])
    except (KeyError, TypeError, ValueError):
        return None
    return space
