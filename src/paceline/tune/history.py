"""What every trial of a search has reported, from the search's journal, read when somebody asks for it.

One file tells of all trials: it is read once for all of them, wherever the search is kept, and changes nothing there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from paceline._storage.depot import Depot
from paceline.tune.drive.book import told_by
from paceline.tune.drive.events import Event, TrialReported
from paceline.tune.drive.state import Search
from paceline.tune.space import stored

Restored = Callable[[Any], Mapping[str, Any]]


def without_objects(plain: Any) -> Mapping[str, Any]:
    """A configuration as the journal has it: of what has no plain form, such as a class, its name."""
    config: Mapping[str, Any] = stored.restored(plain, None)
    return config


FILLED = ("training_iteration", "time_total_s", "time_this_iter_s", "timestamp", "trial_id", "done", "config")
"""The metrics that a search itself adds to each report, as `Search.result` does."""


class History:
    """The reports of all trials of a search."""

    def __init__(self, depot: Depot, restored: Restored = without_objects) -> None:
        self._depot = depot
        self._restored = restored
        self._rows: dict[str, list[dict[str, Any]]] | None = None

    def of(self, trial_id: str) -> list[dict[str, Any]]:
        """Its reports in order, those of all its lives, each with what the search adds."""
        if self._rows is None:
            self._rows = rows_of(told_by(self._depot.journal(), self._depot.uri), self._restored)
        return self._rows.get(trial_id, [])


def rows_of(events: Iterable[Event], restored: Restored = without_objects) -> dict[str, list[dict[str, Any]]]:
    """By trial, one row for each report."""
    search, rows = Search(restored), dict[str, list[dict[str, Any]]]()
    for event in events:
        is_new = isinstance(event, TrialReported) and search.is_new(event.trial, event.run, event.seq)
        search.apply(event)
        if is_new and isinstance(event, TrialReported):
            rows.setdefault(event.trial, []).append(users_first(search.trials[event.trial].last_result or {}))
        for act in getattr(event, "then", ()):
            search.take(act)
    return rows


def search_told_by(events: Iterable[Event], restored: Restored = without_objects) -> Search:
    """The search that a journal tells of."""
    search = Search(restored)
    for event in events:
        search.apply(event)
        for act in getattr(event, "then", ()):
            search.take(act)
    return search


def users_first(result: Mapping[str, Any]) -> dict[str, Any]:
    """A result with the metrics that the trial reported before those that were added."""
    own = {name: value for name, value in result.items() if name not in FILLED}
    return own | {name: result[name] for name in FILLED if name in result}
