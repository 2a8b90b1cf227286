"""The reports of all trials of a search, read lazily from the search's journal.

One file covers all trials: it is read once, wherever the search is stored, and nothing is changed there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from paceline._storage.run_store import RunStore
from paceline.tune.drive.events import Event, TrialReported
from paceline.tune.drive.search_state import Search
from paceline.tune.drive.search_storage import iter_search_events
from paceline.tune.space import config_codec

ConfigDecoder = Callable[[Any], Mapping[str, Any]]


def decode_without_objects(plain: Any) -> Mapping[str, Any]:
    """Decode a configuration from the journal; objects without a plain form, such as classes, become their names."""
    config: Mapping[str, Any] = config_codec.decode_config(plain, None)
    return config


ADDED_METRICS = ("training_iteration", "time_total_s", "time_this_iter_s", "timestamp", "trial_id", "done", "config")
"""The metrics that a search adds to each report, as `Search.build_result` does."""


class TrialReportHistory:
    """The reports of all trials of a search."""

    def __init__(self, depot: RunStore, restored: ConfigDecoder = decode_without_objects) -> None:
        self._depot = depot
        self._decode_config = restored
        self._rows: dict[str, list[dict[str, Any]]] | None = None

    def reports_of(self, trial_id: str) -> list[dict[str, Any]]:
        """Return the reports of all runs of a trial in order, with the metrics that the search adds."""
        if self._rows is None:
            self._rows = collect_report_rows(
                iter_search_events(self._depot.read_journal(), self._depot.uri), self._decode_config
            )
        return self._rows.get(trial_id, [])


def collect_report_rows(
    events: Iterable[Event], restored: ConfigDecoder = decode_without_objects
) -> dict[str, list[dict[str, Any]]]:
    """Return one row per report, by trial."""
    search, rows = Search(restored), dict[str, list[dict[str, Any]]]()
    for event in events:
        is_new = isinstance(event, TrialReported) and search.is_new_report(event.trial, event.run, event.seq)
        search.apply(event)
        if is_new and isinstance(event, TrialReported):
            rows.setdefault(event.trial, []).append(
                reorder_user_metrics_first(search.trials[event.trial].last_result or {})
            )
        for act in getattr(event, "then", ()):
            search.apply_decision(act)
    return rows


def replay_search(events: Iterable[Event], restored: ConfigDecoder = decode_without_objects) -> Search:
    """Rebuild a search from its journal."""
    search = Search(restored)
    for event in events:
        search.apply(event)
        for act in getattr(event, "then", ()):
            search.apply_decision(act)
    return search


def reorder_user_metrics_first(result: Mapping[str, Any]) -> dict[str, Any]:
    """Order the metrics of a result: those from the trial first, then the added ones."""
    own = {name: value for name, value in result.items() if name not in ADDED_METRICS}
    return own | {name: result[name] for name in ADDED_METRICS if name in result}
