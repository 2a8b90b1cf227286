"""Checkpoints that nobody needs are removed as a driver would remove them, and by nobody else.

The run is opened as a driver opens it: its lease is taken, so that no driver has it meanwhile, and its journal is
played. Which checkpoints go is written to the journal first, and only then are their files removed, the manifest of
each before the rest: whoever is cut off in between leaves a run that is whole, and the next driver removes what is
left. The newest checkpoint, the best, those that are pinned and those that wait for their validation always stay.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable

from paceline._commands import asking
from paceline._commands.checkpoints import shown_in
from paceline._control.events import CheckpointsFound, DriverStarted, Event, PinsSet
from paceline._control.recover import history_of
from paceline._control.run import Run
from paceline._core.errors import RunHeldError
from paceline._engine.messages import CheckpointRecord
from paceline._storage.home import Home
from paceline._storage.retention import kept

Records = tuple[CheckpointRecord, ...]


def chosen(run: Run, history: Iterable[Event], num_to_keep: int, best: Collection[str]) -> tuple[Records, Records]:
    """Which go and which stay; `best` are the names of those that people are told are the best."""
    retention = run.retention
    pinned = {*run.pinned, *_last_pins(history)}
    stay = kept(run.checkpoints, num_to_keep, retention.score_attribute, retention.score_order, pinned)
    seqs = {record.seq for record in stay} | {record.seq for record in run.checkpoints if record.name in best}
    goes = tuple(record for record in run.checkpoints if record.seq not in seqs)
    return goes, tuple(record for record in run.checkpoints if record.seq in seqs)


def _last_pins(history: Iterable[Event]) -> tuple[int, ...]:
    """As they were told last: a run that is over takes no note of them, for its driver removes nothing any more."""
    pins: tuple[int, ...] = ()
    for event in history:
        if isinstance(event, PinsSet):
            pins = event.seqs
        elif isinstance(event, DriverStarted):
            pins = event.pinned
    return pins


def planned(home: Home, num_to_keep: int) -> tuple[Records, Records]:
    """The same of a run as it lies there; nothing is touched."""
    run, history = history_of(home.depot_to_read())
    return chosen(run, history, num_to_keep, _best(home))


def pruned(home: Home, num_to_keep: int, say: Callable[[str], None]) -> tuple[Records, Records]:
    """What was removed and what is left; `RunHeldError` where a driver has the run, or the search that it is of."""
    from paceline.train.drive import Seams, opened

    _refuse_in_a_search(home)
    best = _best(home)
    with opened(home, Seams(), say) as (found, depot):
        goes, stay = chosen(found.run, found.history, num_to_keep, best)
        if goes:
            found.journal.append(CheckpointsFound(missing=tuple(record.seq for record in goes)))
            found.journal.sync()
            depot.ship_journal()
        for record in goes:
            depot.delete(record, found.fence)
    return goes, stay


def _best(home: Home) -> set[str]:
    return {shown.name for shown in shown_in(home) if shown.is_best}


def _refuse_in_a_search(home: Home) -> None:
    """Trials that are paused or to come begin from checkpoints of others, which only the search knows."""
    search = asking.search_above(home)
    if search is None:
        return
    from paceline._view.searches import SearchReader

    reader = SearchReader(search)
    reader.refresh()
    state = reader.summary().state
    if state != "complete":
        raise RunHeldError(
            f"run {home.name!r} is a trial of the search {search.name!r}, which is {state} and may begin others from it"
            "\n\nhint: checkpoints of trials can be removed once their search is complete"
        )
