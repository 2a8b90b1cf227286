"""The notebook view of a search: the terminal's table in the cell's output, updated in place.

Output of trials appears below it, and the table remains as the final state of the search.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from paceline.train.notebook import HEIGHT, WIDTH, NotebookCell
from paceline.tune.drive.events import Event
from paceline.tune.drive.search_state import Search
from paceline.tune.terminal import LiveSearchTerminal, SearchTerminal
from paceline.tune.trial_table import render_text_and_html


class NotebookTable(LiveSearchTerminal):
    """Falls back to lines if the notebook rejects it."""

    def __init__(self, name: str, uri: str, verbosity: int, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__(name, uri, verbosity, clock=clock)
        self._cell = NotebookCell()
        self._is_refused = False

    def tick(self, search: Search, now: float) -> None:
        if self._is_refused:
            SearchTerminal.tick(self, search, now)
        else:
            super().tick(search, now)

    def _select_lines(self, event: Event, search: Search) -> list[str]:
        return (
            self._lines.format_event(event, search, self._clock())
            if self._is_refused
            else super()._select_lines(event, search)
        )

    def _draw(self, search: Search, now: float) -> None:
        with self._lock:
            try:
                self._cell.show(*render_text_and_html(search, self._table_state, now, WIDTH, HEIGHT))
            except Exception as problem:  # noqa: BLE001  of whatever shows the notebook; the search goes on
                self._is_refused = True
                self.say(f"what is seen of the search cannot be displayed here ({problem!r}): there are lines instead")

    def _draw_last(self, search: Search) -> None:
        if self._cell.is_shown and not self._is_refused:
            self._draw(search, time.time())
