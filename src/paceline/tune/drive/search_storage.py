"""A search on storage: one driver holds its directory, and reads and appends to its journal.

The journal has the format of a run's, with other events: the same lines, lease and slices in a store.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgspec

from paceline._control import journal
from paceline._control.journal import Journal, JournalCodec, JournalReader
from paceline._core import settings
from paceline._core.codec import valid_prefix
from paceline._core.errors import StorageError
from paceline._storage.lease import Lease
from paceline._storage.lease import acquire_lease as lease_taken
from paceline._storage.run_location import RunLocation, join_storage_path
from paceline._storage.run_store import RunStore
from paceline.tune.drive import events
from paceline.tune.drive.events import SEARCH_VERSION, Event, SearchStarted

if TYPE_CHECKING:
    from paceline.train.run_driver import RunEnvironment


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
    depot: RunStore
    lease: Lease


@contextlib.contextmanager
def open_search(home: RunLocation, seams: RunEnvironment, say: Callable[[str], None]) -> Iterator[OpenSearch]:
    # Imported here because code that only reads a search does not need it.
    from paceline.train import preflight
    from paceline.train.run_driver import create_run_directory

    layout = home.layout
    with preflight.clean_up_on_refusal(layout), contextlib.ExitStack() as opening:
        create_run_directory(seams.files, layout)
        lease = lease_taken(home.open_lease_store(), ttl_s=settings.load().lease_ttl_s, clock=seams.clock, say=say)
        opening.enter_context(contextlib.closing(lease))
        lease.start_renewing()
        preflight.check_storage(seams.files, layout)
        depot = home.open_run_store(seams.files, is_new=lease.number == 1)
        check_is_search(home, depot)
        reading = JournalReader(layout.journal, SEARCH_CODEC)
        past = tuple(reading)
        book = journal.reopen_journal(reading, lease, apart=not lease.holder.alone)
        opening.enter_context(contextlib.closing(book))
        held = opening.pop_all()
    with held:
        lease.mark_alone()
        try:
            yield OpenSearch(past, book, depot, lease)
        finally:
            if not lease.is_lost:
                book.flush()
                depot.upload_journal()


def load_past_events(home: RunLocation) -> tuple[Event, ...]:
    """Read the events from a search's journal without changing anything. Empty if there is no journal."""
    depot = home.open_run_store_for_reading()
    check_is_search(home, depot)
    return tuple(iter_search_events(depot.read_journal(), depot.uri))


def iter_search_events(data: bytes, where: str) -> Iterator[Event]:
    """Iterate over the events of a search's journal, up to the first torn or altered line."""
    for line, payload in enumerate(valid_prefix(data), start=1):
        yield journal.decode_line(payload, where, line, SEARCH_CODEC.decode)


def check_is_search(home: RunLocation, depot: RunStore) -> None:
    first = next(valid_prefix(depot.read_journal()), None)
    if first is not None and not events.is_search_header(_decode_first_line(first)):
        raise StorageError(
            f"{depot.uri} holds a run of a trainer, not a search\n\n"
            f"hint: give the search another name than {home.name!r}; paceline.train.Result.from_path reads the run"
        )


def is_search(home: RunLocation) -> bool:
    first = next(valid_prefix(home.open_run_store_for_reading().read_journal()), None)
    return first is not None and events.is_search_header(_decode_first_line(first))


def trial_run_home(home: RunLocation, run: str) -> RunLocation:
    """Return where a trial's run is stored: inside the search's directory, wherever that was moved to."""
    return RunLocation(join_storage_path(home.storage_path, home.name), run, home.filesystem)


def _decode_first_line(payload: bytes) -> dict[str, Any]:
    found: dict[str, Any] = msgspec.json.decode(payload)
    return found
