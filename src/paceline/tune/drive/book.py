"""A search on storage: its directory held by one driver, its journal read and continued.

The journal is that of a run in another language: the same lines, the same lease, the same slices in a store.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgspec

from paceline._control import journal
from paceline._control.journal import Journal, Language, Reading
from paceline._core import settings
from paceline._core.codec import valid_prefix
from paceline._core.errors import StorageError
from paceline._storage.depot import Depot
from paceline._storage.home import Home, joined
from paceline._storage.lease import Lease
from paceline._storage.lease import taken as lease_taken
from paceline.tune.drive import events
from paceline.tune.drive.events import SEARCH_VERSION, Event, SearchStarted

if TYPE_CHECKING:
    from paceline.train.drive import Seams


def _decoded(payload: bytes) -> Event:
    try:
        event: Event = events.decode(payload)
    except msgspec.ValidationError:
        journal.check_version(payload, SearchStarted, SEARCH_VERSION, "search")
        raise
    if type(event) is SearchStarted:
        journal.check_version(payload, SearchStarted, SEARCH_VERSION, "search")
    return event


OF_SEARCHES = Language(events.encode, _decoded)


@dataclass(frozen=True)
class Held:
    """A search that this driver has, and nobody else."""

    past: tuple[Event, ...]
    journal: Journal
    depot: Depot
    lease: Lease


@contextlib.contextmanager
def opened(home: Home, seams: Seams, say: Callable[[str], None]) -> Iterator[Held]:
    # Here, since those who only read a search need none of it.
    from paceline.train import preflight
    from paceline.train.drive import make_root

    layout = home.layout
    with preflight.undone_if_refused(layout), contextlib.ExitStack() as opening:
        make_root(seams.files, layout)
        lease = lease_taken(home.slot(), ttl_s=settings.load().lease_ttl_s, clock=seams.clock, say=say)
        opening.enter_context(contextlib.closing(lease))
        lease.keep()
        preflight.check_storage(seams.files, layout)
        depot = home.depot(seams.files, is_new=lease.number == 1)
        check_is_search(home, depot)
        reading = Reading(layout.journal, OF_SEARCHES)
        past = tuple(reading)
        book = journal.reopened(reading, lease, apart=not lease.holder.alone)
        opening.enter_context(contextlib.closing(book))
        held = opening.pop_all()
    with held:
        lease.settle()
        try:
            yield Held(past, book, depot, lease)
        finally:
            if not lease.lost:
                book.flush()
                depot.ship_journal()


def past_of(home: Home) -> tuple[Event, ...]:
    """What a search's journal tells, for readers: nothing is changed. Empty where there is none."""
    depot = home.depot_to_read()
    check_is_search(home, depot)
    return tuple(told_by(depot.journal(), depot.uri))


def told_by(data: bytes, where: str) -> Iterator[Event]:
    """The events of a search's journal, up to the first line that is torn or altered."""
    for line, payload in enumerate(valid_prefix(data), start=1):
        yield journal.decoded(payload, where, line, OF_SEARCHES.decode)


def check_is_search(home: Home, depot: Depot) -> None:
    first = next(valid_prefix(depot.journal()), None)
    if first is not None and not events.is_search(_first(first)):
        raise StorageError(
            f"{depot.uri} holds a run of a trainer, not a search\n\n"
            f"hint: give the search another name than {home.name!r}; paceline.train.Result.from_path reads the run"
        )


def is_search(home: Home) -> bool:
    first = next(valid_prefix(home.depot_to_read().journal()), None)
    return first is not None and events.is_search(_first(first))


def home_of_run(home: Home, run: str) -> Home:
    """Where a trial's run is kept: in the search's own directory, wherever that was moved to."""
    return Home(joined(home.storage_path, home.name), run, home.filesystem)


def _first(payload: bytes) -> dict[str, Any]:
    found: dict[str, Any] = msgspec.json.decode(payload)
    return found
