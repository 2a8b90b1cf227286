"""The reports of all trials of a search: from its events in memory, or else from its journal, when they are needed.

One file covers all trials: it is read once, wherever the search is stored, and nothing is changed there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import cached_property
from typing import Any

from paceline._storage.run_store import RunStore
from paceline.tune.driver.events import Event, TrialReported
from paceline.tune.driver.search_state import Search
from paceline.tune.driver.search_storage import iter_search_events
from paceline.tune.space import space_codec

ConfigDecoder = Callable[[Any], Mapping[str, Any]]


def decode_without_objects(plain: Any) -> Mapping[str, Any]:
    """Decode a configuration from the journal; objects without a plain form, such as classes, become their names."""
    config: Mapping[str, Any] = space_codec.decode_config(plain, None)
    return config


ADDED_METRICS = (
    "training_iteration",
    "time_total_s",
    "time_this_iter_s",
    "time_since_restore",
    "iterations_since_restore",
    "timestamp",
    "date",
    "pid",
    "hostname",
    "node_ip",
    "trial_id",
    "done",
    "config",
)
"""The metrics that a search adds to each report, as `Search.build_result` does."""


class TrialReportHistory:
    def __init__(self, store: RunStore, decode_config: ConfigDecoder, events: Iterable[Event] | None = None) -> None:
        """`events` are those of the search, if they are in memory."""
        self._store = store
        self._decode_config = decode_config
        self._events = events

    def reports_of(self, trial_id: str) -> list[dict[str, Any]]:
        """Return the reports of all runs of a trial in order, with the metrics that the search adds."""
        return self._rows.get(trial_id, [])

    @cached_property
    def _rows(self) -> dict[str, list[dict[str, Any]]]:
        events, self._events = self._events, None
        if events is None:
            events = iter_search_events(self._store.read_journal(), self._store.uri)
        return collect_report_rows(events, self._decode_config)


def collect_report_rows(
    events: Iterable[Event], decode_config: ConfigDecoder = decode_without_objects
) -> dict[str, list[dict[str, Any]]]:
    """Return one row per report, by trial."""
    search, rows = Search(decode_config), dict[str, list[dict[str, Any]]]()
    for event in events:
        is_new = isinstance(event, TrialReported) and search.is_new_report(event.trial, event.run, event.seq)
        search.apply(event)
        if is_new and isinstance(event, TrialReported):
            result = search.trials[event.trial].last_result or {}
            rows.setdefault(event.trial, []).append(reorder_user_metrics_first(result))
        search.apply_decisions(event)
    return rows


def replay_search(events: Iterable[Event], decode_config: ConfigDecoder = decode_without_objects) -> Search:
    """Rebuild a search from its journal."""
    search = Search(decode_config)
    for event in events:
        search.apply(event)
        search.apply_decisions(event)
    return search


def reorder_user_metrics_first(result: Mapping[str, Any]) -> dict[str, Any]:
    """Order the metrics of a result: those from the trial first, then the added ones."""
    reported = {name: value for name, value in result.items() if name not in ADDED_METRICS}
    return reported | {name: result[name] for name in ADDED_METRICS if name in result}
