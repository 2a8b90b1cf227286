"""The one thread that reads runs. It alone uses a listing and its readers, so nothing needs a lock.

It refreshes the listing when a query arrives and the data is old, not for each query. How old it may be follows from
the cost of reading: a run that is written fast is read less often, so reading never takes more than a small part of one
core.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

from paceline._dashboard.daemon_threads import DaemonThreads

if TYPE_CHECKING:
    from paceline._view.listing import Listing

T = TypeVar("T")

MIN_PAUSE_S = 0.5
MAX_PAUSE_S = 5.0
READING_CPU_SHARE = 0.05
"""Share of one core for reading new data."""


def compute_pause_s(cost_s: float, share: float) -> float:
    """Return how long to wait before repeating work that takes this much CPU time."""
    return min(max(cost_s / share, MIN_PAUSE_S), MAX_PAUSE_S)


class ListingThread:
    def __init__(self, open_listing: Callable[[], Listing]) -> None:
        self._open_listing = open_listing
        self._listing: Listing | None = None
        self._thread = DaemonThreads("paceline-reading")
        self._stale_at = 0.0

    async def query(self, what: Callable[[Listing], T]) -> T:
        """Call a function with an up-to-date listing and return its result."""
        return await self._thread.run_in_thread(lambda: self._run_query(what))

    def stale_in_s(self) -> float:
        return max(self._stale_at - time.monotonic(), 0.0)

    def close(self) -> None:
        self._thread.close()

    def _run_query(self, what: Callable[[Listing], T]) -> T:
        if self._listing is None:
            self._listing = self._open_listing()
        if time.monotonic() >= self._stale_at:
            began = time.thread_time()
            self._listing.refresh()
            self._stale_at = time.monotonic() + compute_pause_s(time.thread_time() - began, READING_CPU_SHARE)
        return what(self._listing)
