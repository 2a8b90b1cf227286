"""Remove checkpoints that are no longer needed, the way a driver does.

The run is opened like a driver opens it: by taking its lease, so that no driver can hold it, and replaying its journal.
The removal is journaled before any file is deleted, and each checkpoint's manifest is deleted before its other files. A
crash in between therefore leaves a consistent run, and the next driver deletes the rest. The newest and the best
checkpoint always stay, and so do those that are pinned or awaiting validation.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable

from paceline._commands import cli_args
from paceline._commands.checkpoints import read_checkpoints
from paceline._control.events import CheckpointsFound, DriverStarted, Event, PinsSet
from paceline._control.recovery import load_history
from paceline._control.run import Run
from paceline._core.errors import RunHeldError
from paceline._engine.messages import CheckpointRecord
from paceline._storage.retention import select_kept
from paceline._storage.run_location import RunLocation

Records = tuple[CheckpointRecord, ...]


def split_checkpoints(
    run: Run, history: Iterable[Event], num_to_keep: int, best: Collection[str]
) -> tuple[Records, Records]:
    """Return the checkpoints to remove and those to keep. `best` names the checkpoints shown as best."""
    retention = run.retention
    pinned = {*run.pinned, *_latest_pins(history)}
    stay = select_kept(run.checkpoints, num_to_keep, retention.score_attribute, retention.score_order, pinned)
    seqs = {record.seq for record in stay} | {record.seq for record in run.checkpoints if record.name in best}
    goes = tuple(record for record in run.checkpoints if record.seq not in seqs)
    return goes, tuple(record for record in run.checkpoints if record.seq in seqs)


def _latest_pins(history: Iterable[Event]) -> tuple[int, ...]:
    """Return the pins in effect at the end of the journal.

    A finished run does not track pins, because its driver no longer removes anything.
    """
    pins: tuple[int, ...] = ()
    for event in history:
        if isinstance(event, PinsSet):
            pins = event.seqs
        elif isinstance(event, DriverStarted):
            pins = event.pinned
    return pins


def plan_pruning(home: RunLocation, num_to_keep: int) -> tuple[Records, Records]:
    """Like `split_checkpoints` for a stored run, without changing anything."""
    run, history = load_history(home.open_run_store_for_reading())
    return split_checkpoints(run, history, num_to_keep, _best_names(home))


def prune_checkpoints(home: RunLocation, num_to_keep: int, say: Callable[[str], None]) -> tuple[Records, Records]:
    """Remove checkpoints and return the removed and the remaining ones.

    Raises `RunHeldError` if a driver holds the run or its search.
    """
    from paceline.train.run_driver import RunEnvironment, open_run

    _refuse_in_unfinished_search(home)
    best = _best_names(home)
    with open_run(home, RunEnvironment(), say) as (found, depot):
        goes, stay = split_checkpoints(found.run, found.history, num_to_keep, best)
        if goes:
            found.journal.append(CheckpointsFound(missing=tuple(record.seq for record in goes)))
            found.journal.sync()
            depot.upload_journal()
        for record in goes:
            depot.delete(record, found.fence)
    return goes, stay


def _best_names(home: RunLocation) -> set[str]:
    return {shown.name for shown in read_checkpoints(home) if shown.is_best}


def _refuse_in_unfinished_search(home: RunLocation) -> None:
    """Refuse while the search is unfinished: paused and future trials may start from this run's checkpoints."""
    search = cli_args.find_parent_search(home)
    if search is None:
        return
    from paceline._view.search_reader import SearchReader

    reader = SearchReader(search)
    reader.refresh()
    state = reader.summary().state
    if state != "complete":
        raise RunHeldError(
            f"run {home.name!r} is a trial of the search {search.name!r}, which is {state} and may begin others from it"
            "\n\nhint: checkpoints of trials can be removed once their search is complete"
        )
