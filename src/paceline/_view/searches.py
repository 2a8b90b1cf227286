"""A search as people look at it, read from its journal again and again, only what is new; and what its plots show."""

from __future__ import annotations

import os
import threading
from array import array
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from paceline._core.codec import valid_prefix
from paceline._core.errors import StorageError
from paceline._core.plain import plain
from paceline._storage.home import Home
from paceline._view.liveness import Liveness
from paceline._view.model import Best, SearchDetail, State, Summary
from paceline._view.reports import flattened
from paceline._view.shown import judged_by, values_of
from paceline._view.tail import DiskTail, StoreTail, Tail

if TYPE_CHECKING:
    from paceline._view.listing import Listing
    from paceline.tune.drive.state import Search
    from paceline.tune.trial import Trial

_POINTS = 500
"""Of each trial's curve."""


class SearchReader:
    """May be used from several threads."""

    def __init__(self, search: str | os.PathLike[str] | Home) -> None:
        self.home = search if isinstance(search, Home) else Home.of_path(os.fspath(search))
        self.version = 0
        self._store = self.home.store() if self.home.address is not None else None
        self._where = self._store.uri if self._store is not None else self.home.uri
        self._lock = threading.RLock()
        self._liveness = Liveness(self.home)
        self._held = False
        self._tail = self._opened()
        self._begin()

    def refresh(self) -> bool:
        """Read what is new; whether anything changed."""
        with self._lock:
            held = self._liveness.is_held()
            changed = self._read()
            if self._is_over:
                held = True
            if held != self._held:
                self._held, changed = held, True
            self.version += changed
            return changed

    def summary(self, id: str = ".") -> Summary:
        with self._lock:
            search = self._read_something()
            best = search.best
            leading = search.trials.get(best.trial_id) if best is not None else None
            num_over = sum(trial.is_over for trial in search.trials.values())
            failed = [trial for trial in search.trials.values() if trial.status == "ERROR"]
            return Summary(
                id=id,
                name=self.home.name,
                path=self._where,
                kind="search",
                state=self._state(search),
                began_at=self._began_at,
                ended_at=search.last_at if self._is_over or not self._held else None,
                updated_at=search.last_at,
                attempt=search.num_drivers,
                num_workers=len(search.of_status("RUNNING")) if self._held and not self._is_over else 0,
                num_reports=num_over,
                num_failures=len(failed),
                metrics=_own_metrics(leading),
                best=Best(search.metric, "max" if search.mode == "max" else "min", best.value, best.iteration)
                if best is not None and search.metric is not None
                else None,
                progress=_progress(search, num_over, is_complete=self._is_over and search.is_complete),
                failure=failed[-1].why or None if failed else None,
            )

    def runs(self) -> dict[str, str]:
        """By the name of a run, the trial that it belongs to."""
        with self._lock:
            search = self._read_something()
            return {run: trial for trial, standing in search.standing.items() for run in standing.runs}

    def last_runs(self) -> dict[str, str]:
        """By trial, the name of the run that it has now, or had last."""
        with self._lock:
            return {trial: standing.run for trial, standing in self._read_something().standing.items()}

    def plots(self, metric: str | None, mode: str | None) -> tuple[str | None, str | None, dict[str, Any]]:
        """The metric and mode that were taken, and what `paceline.tune.plots` gives for them."""
        from paceline.tune import plots

        with self._lock:
            search = self._read_something()
            metric, mode = self._judged(search, metric, mode)
            if metric is None or mode is None:
                return metric, mode, {}
            trials = [self._plotted(trial, metric) for trial in search.trials.values()]
            space = _space(search)
        try:
            importance = plots.importance(trials, metric, mode, space)
        except ImportError as missing:
            importance = {"metric": metric, "mode": mode, "parameters": [], "note": str(missing)}
        return (
            metric,
            mode,
            {
                "parallel": plots.parallel_coordinates(trials, metric, mode, space),
                "importance": importance,
                "curves": plots.curves(trials, metric, mode),
            },
        )

    def configs(self) -> dict[str, dict[str, Any]]:
        """By trial, as far as they are plain."""
        with self._lock:
            return {trial.trial_id: _plain(trial.config) for trial in self._read_something().trials.values()}

    def _begin(self) -> None:
        self._search: Search | None = None
        self._began_at = 0.0
        self._is_over = False
        self._problem: str | None = None
        self._curves: dict[str, dict[str, tuple[array[int], array[float]]]] = {}
        """By trial and metric: iterations and values."""

    def _opened(self) -> Tail:
        return DiskTail(self.home.layout.journal) if self._store is None else StoreTail(self._store)

    def _read(self) -> bool:
        changed = False
        if self._tail.is_another():
            self._begin()
            changed = True
        while data := self._tail.more():
            taken = 0
            for payload in valid_prefix(data):
                taken += len(payload) + 10
                self._take(payload)
                changed = True
            self._tail.took(data, taken)
            if taken < len(data):
                break
        return changed

    def _take(self, payload: bytes) -> None:
        from paceline._control import journal
        from paceline.tune.drive.book import OF_SEARCHES
        from paceline.tune.drive.events import SearchEnded, SearchStarted, TrialReported
        from paceline.tune.drive.state import Search
        from paceline.tune.history import without_objects

        event = journal.decoded(payload, self._where, decode=OF_SEARCHES.decode)
        if self._search is None:
            if not isinstance(event, SearchStarted):
                raise StorageError(f"{self._where} has no journal of a search")
            self._search, self._began_at = Search(without_objects), event.at
        search = self._search
        is_new = isinstance(event, TrialReported) and search.is_new(event.trial, event.run, event.seq)
        search.apply(event)
        if is_new and isinstance(event, TrialReported):
            self._add(search.trials[event.trial])
        for act in getattr(event, "then", ()):
            search.take(act)
        self._is_over = isinstance(event, SearchEnded)

    def _add(self, trial: Trial) -> None:
        curves = self._curves.setdefault(trial.trial_id, {})
        for name, value in flattened(_without_filled(trial.last_result)):
            if type(value) is float or type(value) is int:
                iterations, values = curves.setdefault(name, (array("q"), array("d")))
                try:
                    values.append(value)
                except OverflowError:  # Of an integer that is larger than any float.
                    continue
                iterations.append(trial.iteration)

    def _read_something(self) -> Search:
        if self._search is None:
            self.refresh()
        if self._search is None:
            raise StorageError(f"{self._where} has no journal of a search, or an empty one")
        return self._search

    def _state(self, search: Search) -> State:
        if self._is_over:
            return "complete" if search.is_complete else "stopped"
        if not self._held:
            return "lost"
        return "running" if any(trial.status != "PENDING" for trial in search.trials.values()) else "starting"

    def _judged(self, search: Search, metric: str | None, mode: str | None) -> tuple[str | None, str | None]:
        if mode is not None and mode not in ("min", "max"):
            raise ValueError(f"mode={mode!r} is neither 'min' nor 'max'")
        metric = metric if metric is not None else search.metric
        names = list(dict.fromkeys(name for curves in self._curves.values() for name in curves))
        if metric is None:
            from paceline._control.events import Retention

            judged = judged_by(names, Retention())
            return (judged[0], mode or judged[1]) if judged is not None else (None, None)
        if mode is None:
            mode = search.mode if metric == search.metric else None
        return metric, mode or "min"

    def _plotted(self, trial: Trial, metric: str) -> Any:
        from paceline.tune.plots import PlottedTrial

        iterations, values = self._curves.get(trial.trial_id, {}).get(metric, (array("q"), array("d")))
        every = max(1, -(-len(values) // _POINTS))
        last = len(values) - 1
        history = [(iterations[at], values[at]) for at in range(len(values)) if at % every == 0 or at == last]
        return PlottedTrial(
            trial_id=trial.trial_id,
            config=dict(trial.config),
            history=history,
            value=values[-1] if len(values) else None,
            status="STOPPED" if trial.status == "TERMINATED" and trial.why else trial.status,
        )


def search_detail(
    listing: Listing | str | os.PathLike[str], id: str = ".", metric: str | None = None, mode: str | None = None
) -> SearchDetail:
    """A search with its trials, by the id that a listing has for it. `KeyError` where there is none.

    `metric` and `mode` are those of the search where they are not given, or what the names of its metrics suggest.
    """
    from paceline._view.listing import Listing

    if not isinstance(listing, Listing):
        listing = Listing(listing)
        listing.refresh()
    reader = listing.search(id)
    reader.refresh()
    metric, mode, data = reader.plots(metric, mode)
    trials = listing.trials(id)
    return SearchDetail(
        summary=reader.summary(id),
        metric=metric,
        mode=mode,
        trials=tuple(trials),
        configs=_by_id(trials, reader),
        parallel=data.get("parallel"),
        importance=data.get("importance"),
        curves=data.get("curves"),
    )


def _by_id(trials: Sequence[Summary], reader: SearchReader) -> dict[str, dict[str, Any]]:
    configs, runs = reader.configs(), reader.runs()
    return {trial.id: configs[runs[trial.name]] for trial in trials if trial.name in runs}


def _progress(search: Search, num_over: int, *, is_complete: bool) -> float | None:
    if is_complete:
        return 1.0
    expected = len(search.trials) if search.is_exhausted else max(search.num_samples, len(search.trials))
    return min(1.0, num_over / expected) if expected > 0 and search.num_samples > 0 else None


def _own_metrics(trial: Trial | None) -> dict[str, Any]:
    return values_of(dict(flattened(_without_filled(trial.last_result)))) if trial is not None else {}


def _without_filled(result: Mapping[str, Any] | None) -> dict[str, Any]:
    from paceline.tune.history import FILLED

    return {name: value for name, value in (result or {}).items() if name not in FILLED}


def _plain(config: Mapping[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in config.items():
        try:
            found[name] = plain(value)
        except (TypeError, ValueError):
            found[name] = repr(value)
    return found


def _space(search: Search) -> Mapping[str, Any] | None:
    from paceline.tune.space.described import param_space_of

    try:
        space: Mapping[str, Any] = param_space_of(search.described["space"])
    except (KeyError, TypeError, ValueError):
        return None
    return space
