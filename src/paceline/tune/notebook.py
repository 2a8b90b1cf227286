"""What a person in a notebook sees of a search: the table of a terminal, in the cell's output, brought up to date in
place. What trials print comes below it, and the table stays as the search's last state.
"""

from __future__ import annotations

import io
import time
from collections.abc import Callable

from rich.console import Console, RenderableType

from paceline.train.notebook import HEIGHT, WIDTH, Cell
from paceline.tune.drive.events import Event
from paceline.tune.drive.state import Search
from paceline.tune.table import picture
from paceline.tune.terminal import DrawnTerminal, SearchTerminal

_MARKUP = '<pre style="line-height:1.25">{code}</pre>'


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
                self._cell.show(*rendered(picture(search, self._drawn, now, WIDTH, HEIGHT)))
            except Exception as problem:  # noqa: BLE001  of whatever shows the notebook; the search goes on
                self._is_refused = True
                self.say(f"what is seen of the search cannot be displayed here ({problem!r}): there are lines instead")

    def _draw_last(self, search: Search) -> None:
        if self._cell.is_shown and not self._is_refused:
            self._draw(search, time.time())


def rendered(what: RenderableType) -> tuple[str, str]:
    """As text and as HTML, in which every text is escaped: nothing that a trial says is markup."""
    console = Console(
        file=io.StringIO(),
        record=True,
        width=WIDTH,
        force_terminal=True,
        force_jupyter=False,  # It would display by itself.
        color_system="standard",
        legacy_windows=False,
        highlight=False,
        markup=False,
        emoji=False,
    )
    console.print(what)
    html = console.export_html(inline_styles=True, code_format=_MARKUP, clear=False)
    return "\n".join(line.rstrip() for line in console.export_text().splitlines()), html
