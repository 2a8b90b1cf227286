"""The live view of a run on a terminal: one block that is redrawn below all other output.

The block is drawn at most four times a second, and less often if drawing would take more than 1 % of the driver's
time. It disappears when the run ends; one line with the final progress remains.
"""

from __future__ import annotations

import sys
from typing import Any

from paceline._control.run import Run
from paceline.train.display.snapshot_rendering import render_block
from paceline.train.display.terminal import Terminal
from paceline.train.display.terminal_region import TERMINAL_LOCK, TerminalRegion, terminal_size

REDRAW_INTERVAL_S = 0.25
_IDLE_FACTOR = 100
FIRST_DRAW_S = 0.5
"""A run that ends sooner shows no block."""


class RedrawTimer:
    """Decides when to redraw."""

    def __init__(self, began: float) -> None:
        self._next = began + FIRST_DRAW_S

    def is_due(self, now: float) -> bool:
        return now >= self._next

    def mark_drawn(self, began: float, ended: float) -> None:
        self._next = ended + max(REDRAW_INTERVAL_S, _IDLE_FACTOR * (ended - began))


class LiveTerminal(Terminal):
    """Shows the block of one run. If another run already draws on the terminal, prints plain lines above its block."""

    def __init__(self, *args: Any, colour: bool = True, **options: Any) -> None:
        super().__init__(*args, **options)
        self._terminal = self._out if self._out is not None else sys.stderr
        self._region = TerminalRegion(self._terminal, colour)
        self._redraw_timer = RedrawTimer(self._clock())

    def _write(self, text: str) -> None:
        with TERMINAL_LOCK:
            if self._region.is_drawn:
                self._region.write(text)
            else:  # Another run's block may be there.
                super()._write(text)

    def _show_progress(self, run: Run) -> None:
        began = self._clock()
        if not self._redraw_timer.is_due(began):
            return
        width, height = terminal_size(self._terminal)
        is_drawn = width > 0 and self._region.draw(render_block(self._take_snapshot(run), width - 1, height - 1))
        self._redraw_timer.mark_drawn(began, self._clock())
        if is_drawn:
            self._has_shown_progress = True
        else:
            super()._show_progress(run)

    def _end_progress(self) -> None:
        self._region.close()

    def _write_worker_output(self, text: str) -> None:
        with TERMINAL_LOCK:  # While a region is drawn, it replaces standard output.
            super()._write_worker_output(text)
