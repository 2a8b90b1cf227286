"""Tell the driver what keeps a worker from exiting after its function has returned."""

from __future__ import annotations

import multiprocessing
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from paceline._core import settings
from paceline._core.frames import thread_site
from paceline._engine import messages

if TYPE_CHECKING:
    from paceline._worker.context import WorkerContext
    from paceline._worker.link import DriverLink


@contextmanager
def report_delayed_exit(context: WorkerContext, link: DriverLink) -> Iterator[None]:
    """Send `ExitDelayed` if the block takes longer than the grace period."""
    grace_s = settings.exit_grace_s()

    def report() -> None:
        begin = context.begin
        link.send(messages.ExitDelayed(begin.attempt, begin.rank, describe_exit_blockers(), grace_s))

    link.call_later(grace_s, report)
    try:
        yield
    finally:
        link.cancel_call()


def describe_exit_blockers() -> str:
    """Name the threads and child processes that the interpreter waits for, else where its exit handlers are."""
    main = threading.main_thread()
    threads = [thread for thread in threading.enumerate() if not thread.daemon and thread is not main]
    children = [child for child in multiprocessing.active_children() if not child.daemon]
    blockers = [f"thread {thread.name!r}{_describe_position(thread)}" for thread in threads]
    blockers += [f"child process {child.name!r} (pid {child.pid})" for child in children]
    return " and ".join(blockers) or f"an exit handler{_describe_position(main)}"


def _describe_position(thread: threading.Thread) -> str:
    site = thread_site(thread)
    return f" at {site}" if site else ""
