"""What a person in a notebook sees of a search: the table of a terminal, in the cell's output, brought up to date in
place. What trials print comes below it, and the table stays as the search's last state.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from paceline.train.notebook import HEIGHT, WIDTH, Cell
from paceline.tune.drive.events import Event
from paceline.tune.drive.state import Search
from paceline.tune.table import in_two_forms
from paceline.tune.terminal import DrawnTerminal, SearchTerminal


class NotebookTable(DrawnTerminal):
    """Where the notebook refuses it, there are lines."""

    def __init__(self, name: str, uri: str, verbosity: int, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__(name, uri, verbosity, clock=clock)
        self._cell = Cell()
        self._is_refused = False

    def tick(self, search: Search, now: float) -> None:
        if self._is_refused:
            SearchTerminal.tick(self, search, now)
        else:
            super().tick(search, now)

    def _said(self, event: Event, search: Search) -> list[str]:
        return self._lines.of(event, search, self._clock()) if self._is_refused else super()._said(event, search)

    def _draw(self, search: Search, now: float) -> None:
        with self._lock:
            try:
                self._cell.show(*in_two_forms(search, self._drawn, now, WIDTH, HEIGHT))
            except Exception as problem:  # noqa: BLE001  of whatever shows the notebook; the search goes on
                self._is_refused = True
                self.say(f"what is seen of the search cannot be displayed here ({problem!r}): there are lines instead")

    def _draw_last(self, search: Search) -> None:
        if self._cell.is_shown and not self._is_refused:
            self._draw(search, time.time())
