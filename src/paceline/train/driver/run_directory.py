"""The directory of a run or a search: created, leased to one driver, checked for writing, recovered."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterator
from typing import TypeVar

from paceline._control.journal import Journal
from paceline._control.recovery import RecoveredRun, recover_run
from paceline._core import settings
from paceline._core.errors import RunHeldError
from paceline._storage.files import Files
from paceline._storage.lease import Lease, acquire_lease
from paceline._storage.run_layout import RunLayout
from paceline._storage.run_location import RunLocation
from paceline._storage.run_store import RunStore
from paceline.train.driver import preflight
from paceline.train.driver.run_spec import RunEnvironment

T = TypeVar("T")

log = logging.getLogger("paceline")


@contextlib.contextmanager
def open_run(
    location: RunLocation, environment: RunEnvironment, say: Callable[[str], None]
) -> Iterator[tuple[RecoveredRun, RunStore]]:
    """Open the run and hold its lease: yields the recovered run and its store, which has been checked for writing."""

    def recover(store: RunStore, lease: Lease) -> tuple[RecoveredRun, Journal]:
        recovered = recover_run(store, environment.clock.wall(), lease, in_new_file=not lease.holder.alone)
        return recovered, recovered.journal

    with open_directory(location, environment, say, recover) as (recovered, _, store, lease):
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
) -> Iterator[tuple[T, Journal, RunStore, Lease]]:
    """Hold a directory's lease and yield what `recover` made of it. Nothing is left behind if that is refused."""
    layout = location.layout
    location = location.share_store()
    with preflight.clean_up_on_refusal(layout), contextlib.ExitStack() as opening:
        create_run_directory(environment.files, layout)
        lease = acquire_lease(
            location.open_lease_store(),
            ttl_s=settings.load().lease_ttl_s,
            clock=environment.clock,
            say=say,
            controller=environment.controller_id,
        )
        opening.enter_context(contextlib.closing(lease))
        lease.start_renewing()
        preflight.check_storage(environment.files, layout)
        store = location.open_run_store(environment.files, is_new=lease.number == 1)
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
