"""A search on storage: one driver holds its directory, and reads and appends to its journal.

The journal has the format of a run's, with other events: the same lines, lease and slices in a store.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec

from paceline._control import journal
from paceline._control.journal import Journal, JournalCodec, JournalReader
from paceline._core.codec import valid_prefix
from paceline._core.errors import StorageError
from paceline._storage.lease import Lease
from paceline._storage.run_location import RunLocation, join_storage_path
from paceline._storage.run_store import RunStore
from paceline.tune.driver import events
from paceline.tune.driver.events import SEARCH_VERSION, Event, SearchStarted
from paceline.tune.driver.search_state import total_driven_s

if TYPE_CHECKING:
    from paceline._control.storage_thread import StorageThread
    from paceline.train.driver.run_spec import RunEnvironment
    from paceline.tune.driver.advisers import SearchAdvisers
    from paceline.tune.driver.search_spec import SearchOutcome

SYNC_EVERY_S = 1.0


def _decode_search_event(payload: bytes) -> Event:
    try:
        event: Event = events.decode(payload)
    except msgspec.ValidationError:
        journal.check_version(payload, SearchStarted, SEARCH_VERSION, "search")
        raise
    if type(event) is SearchStarted:
        journal.check_version(payload, SearchStarted, SEARCH_VERSION, "search")
    return event


SEARCH_CODEC = JournalCodec(events.encode, _decode_search_event)


@dataclass(frozen=True)
class OpenSearch:
    """A search that this driver holds exclusively."""

    past_events: tuple[Event, ...]
    journal: Journal
    store: RunStore
    lease: Lease


class EventRecorder:
    """Applies events to a search, and journals each of them with the decisions that the advisers make on it."""

    def __init__(self, outcome: SearchOutcome, advisers: SearchAdvisers, open_search: OpenSearch) -> None:
        self._outcome = outcome
        self._advisers = advisers
        self._open_search = open_search
        self._unexecuted: list[Event] = []
        self._synced_at = time.monotonic()

    def replay(self) -> None:
        """Replay the events of earlier drivers into the search and its advisers."""
        past, search = self._open_search.past_events, self._outcome.search
        if past:
            self._advisers.on_search_resumed(total_driven_s(past))
        for event in past:
            search.apply(event)
            self._advisers.handle_event(event, search, again=True)
            search.apply_decisions(event)
            self._outcome.add_event(event)

    def record(self, event: Event) -> None:
        search = self._outcome.search
        search.apply(event)
        decisions = self._advisers.handle_event(event, search)
        self.append(msgspec.structs.replace(event, then=decisions) if decisions else event)

    def append(self, event: Event) -> None:
        """Journal an event that has been applied, and apply its decisions."""
        self._open_search.journal.append(event)
        self._unexecuted.append(event)
        self._outcome.search.apply_decisions(event)
        self._outcome.add_event(event)

    @property
    def has_unexecuted(self) -> bool:
        return bool(self._unexecuted)

    def take_unexecuted(self) -> list[Event]:
        """Return the recorded events, now in the journal, whose decisions are still to be carried out."""
        self._open_search.journal.flush()
        unexecuted, self._unexecuted = self._unexecuted, []
        return unexecuted

    def sync_if_due(self, background: StorageThread) -> None:
        background.take_events()  # Raises errors from the background thread.
        now = time.monotonic()
        if self._open_search.journal.has_unsynced and now - self._synced_at >= SYNC_EVERY_S:
            self._synced_at = now
            self._open_search.journal.has_unsynced = False
            background.submit(self._sync_and_upload)

    def _sync_and_upload(self) -> None:
        self._open_search.journal.sync_written()
        self._open_search.store.upload_journal()


@contextlib.contextmanager
def open_search(location: RunLocation, environment: RunEnvironment, say: Callable[[str], None]) -> Iterator[OpenSearch]:
    # Imported here because code that only reads a search does not need it.
    from paceline.train.driver.run_directory import open_directory

    def recover(store: RunStore, lease: Lease) -> tuple[tuple[Event, ...], Journal]:
        store.recover(lease)
        check_is_search(location, store)
        reader = JournalReader(location.layout.journal, SEARCH_CODEC)
        past = tuple(reader)
        return past, journal.reopen_journal(reader, lease, in_new_file=not lease.holder.alone)

    with open_directory(location, environment, say, recover) as (past, search_journal, store, lease):
        try:
            yield OpenSearch(past, search_journal, store, lease)
        finally:
            if not lease.is_lost:
                search_journal.flush()
                store.upload_journal()


def load_past_events(location: RunLocation) -> tuple[Event, ...]:
    """Read the events from a search's journal without changing anything. Empty if there is no journal."""
    store = location.open_run_store_for_reading()
    check_is_search(location, store)
    return tuple(iter_search_events(store.read_journal(), store.uri))


def iter_search_events(data: bytes, uri: str) -> Iterator[Event]:
    """Iterate over the events of a search's journal, up to the first torn or altered line."""
    for line, payload in enumerate(valid_prefix(data), start=1):
        yield journal.decode_line(payload, uri, line, SEARCH_CODEC)


def check_is_search(location: RunLocation, store: RunStore) -> None:
    if _holds_search(store) is False:
        raise StorageError(
            f"{store.uri} contains a run, not a search\n\n"
            f"hint: use another name than {location.name!r}, or read the run with paceline.train.Result.from_path"
        )


def is_search(location: RunLocation) -> bool:
    return _holds_search(location.open_run_store_for_reading()) is True


def trial_run_location(location: RunLocation, run: str) -> RunLocation:
    """Return where a trial's run is stored: inside the search's directory, wherever that was moved to."""
    return RunLocation(join_storage_path(location.storage_path, location.name), run, location.filesystem)


def _holds_search(store: RunStore) -> bool | None:
    """Whether its journal is that of a search; None if there is no journal."""
    first = next(valid_prefix(store.read_journal()), None)
    return events.is_search_header(msgspec.json.decode(first)) if first is not None else None
