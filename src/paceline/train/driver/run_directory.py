"""The directory of a run or a search: created, leased to one driver, checked for writing, recovered."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import logging
from collections.abc import Callable, Iterator
from typing import TypeVar

from paceline._control.journal import Journal
from paceline._control.recovery import RecoveredRun, recover_run
from paceline._core import settings
from paceline._core.errors import RunExistsError, RunHeldError
from paceline._storage.files import Files
from paceline._storage.lease import Lease, acquire_lease
from paceline._storage.run_layout import RunLayout
from paceline._storage.run_location import RunLocation
from paceline._storage.run_store import RunStore
from paceline.train.config import RunConfig
from paceline.train.driver import preflight
from paceline.train.driver.run_spec import RunEnvironment

T = TypeVar("T")

log = logging.getLogger("paceline")


def choose_name(config: RunConfig) -> RunConfig:
    """Carry out what `if_exists` says about a name that is taken: raise, or return a config with a free name."""
    if config.if_exists in (None, "resume") or not _is_taken(config.location):
        return config
    if config.if_exists == "fail":
        raise RunExistsError(
            f"{config.location.uri} exists, and RunConfig has if_exists='fail'\n\n"
            "hint: use another RunConfig(name=...), or if_exists='new' or 'resume'"
        )
    others = (dataclasses.replace(config, name=f"{config.name}-{number}") for number in itertools.count(2))
    return next(other for other in others if not _is_taken(other.location))


def _is_taken(location: RunLocation) -> bool:
    """Whether a run or search was started here."""
    if location.address is None and not location.layout.root.is_dir():
        return False
    return location.open_lease_store().read() is not None or bool(location.open_run_store_for_reading().read_journal())


def make_different_run_error(kind: str, name: str, uri: str, changes: list[str]) -> RunExistsError:
    listed = "\n".join(f"  {change}" for change in changes)
    return RunExistsError(
        f"{kind} {name} has finished, but the new request differs from it:\n{listed}\n\n  in {uri}\n\n"
        "hint: use another RunConfig(name=...), or RunConfig(if_exists='new') to begin a new one beside it, or "
        "if_exists='resume' to get its result"
    )


@contextlib.contextmanager
def open_run(
    location: RunLocation, environment: RunEnvironment, say: Callable[[str], None], *, is_probed: bool = False
) -> Iterator[tuple[RecoveredRun, RunStore]]:
    """Open the run and hold its lease: yields the recovered run and its store, which has been checked for writing.

    `is_probed`: the storage was checked before, as by the search that the run is a trial of.
    """

    def recover(store: RunStore, lease: Lease) -> tuple[RecoveredRun, Journal]:
        recovered = recover_run(store, environment.clock.wall(), lease, in_new_file=not lease.holder.alone)
        return recovered, recovered.journal

    with open_directory(location, environment, say, recover, is_probed=is_probed) as (recovered, _, store, lease):
        try:
            yield recovered, store
        except BaseException:
            try:
                _close_store(store, lease, is_done=False)
            except OSError as error:  # The first error is the one to raise.
                log.warning("%s", error)
            raise
        _close_store(store, lease, is_done=True)


def _close_store(store: RunStore, lease: Lease, *, is_done: bool) -> None:
    if lease.is_lost:  # The staged files belong to the other driver.
        return
    try:
        store.clear_staging(lease)
    except RunHeldError:
        raise
    except OSError as error:
        log.warning("files that are in no checkpoint stay in %s until the run is opened again: %s", store.uri, error)
    store.close(is_done=is_done)


@contextlib.contextmanager
def open_directory(
    location: RunLocation,
    environment: RunEnvironment,
    say: Callable[[str], None],
    recover: Callable[[RunStore, Lease], tuple[T, Journal]],
    *,
    is_probed: bool = False,
) -> Iterator[tuple[T, Journal, RunStore, Lease]]:
    """Hold a directory's lease and yield what `recover` made of it. Nothing is left behind if that is refused."""
    layout = location.layout
    location = location.share_store()
    with preflight.clean_up_on_refusal(layout), contextlib.ExitStack() as opening:
        create_run_directory(environment.files, layout)
        lease = acquire_lease(
            location.open_lease_store(),
            ttl_s=settings.lease_ttl_s(),
            clock=environment.clock,
            say=say,
            controller=environment.controller_id,
        )
        opening.enter_context(contextlib.closing(lease))
        lease.start_renewing()
        if not is_probed:
            preflight.check_storage(environment.files, layout)
        store = location.open_run_store(environment.files, is_new=lease.number == 1, fence=lease)
        recovered, journal = recover(store, lease)
        opening.enter_context(contextlib.closing(journal))
        resources = opening.pop_all()
    try:
        with resources:
            lease.mark_alone()
            yield recovered, journal, store, lease
    finally:
        store.retry_anew()  # Whoever reads the result may wait for the store again.


def create_run_directory(files: Files, layout: RunLayout) -> None:
    above = [path for path in layout.root.parents if not path.exists()]
    layout.root.parent.mkdir(parents=True, exist_ok=True)
    files.make_dir(layout.root)
    # Otherwise a power cut could lose one of the parent directories. The run store syncs the run's own name.
    for path in above:
        files.sync_dir(path.parent)
