"""The one thread that reads runs. All that touches a listing or its readers happens in it, so nothing needs a lock.

What is new is read when somebody asks and what there is has become old, never for each who asks. How old it may be
follows from what reading costs: a run that is written fast is read less often, and never with more than a small part
of one core.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

from paceline._dashboard.beside import Beside

if TYPE_CHECKING:
    from paceline._view.listing import Listing

T = TypeVar("T")

OFTEN_S = 0.5
SELDOM_S = 5.0
READING_SHARE = 0.05
"""Of one core, for reading what is new."""


def pause_s(cost_s: float, share: float) -> float:
    """How long to wait before something is done again that takes so much of a processor's time."""
    return min(max(cost_s / share, OFTEN_S), SELDOM_S)


class Reading:
    def __init__(self, open_listing: Callable[[], Listing]) -> None:
        self._open = open_listing
        self._listing: Listing | None = None
        self._thread = Beside("paceline-reading")
        self._old_at = 0.0

    async def ask(self, what: Callable[[Listing], T]) -> T:
        """What this gives for a listing that is not old."""
        return await self._thread.do(lambda: self._asked(what))

    def is_old_in_s(self) -> float:
        return max(self._old_at - time.monotonic(), 0.0)

    def close(self) -> None:
        self._thread.close()

    def _asked(self, what: Callable[[Listing], T]) -> T:
        if self._listing is None:
            self._listing = self._open()
        if time.monotonic() >= self._old_at:
            began = time.thread_time()
            self._listing.refresh()
            self._old_at = time.monotonic() + pause_s(time.thread_time() - began, READING_SHARE)
        return what(self._listing)
