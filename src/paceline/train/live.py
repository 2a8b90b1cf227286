"""What a person at a terminal sees of a run: one block that is redrawn, and above it all that is printed.

The block is drawn at most four times a second, and so rarely that drawing takes at most a hundredth of the driver's
time. It vanishes when the run ends: a line of how far it came stays.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping
from typing import Any, TextIO

from paceline._control.run import Run
from paceline._storage.layout import Layout
from paceline.train.block import block
from paceline.train.region import Region, is_same, its_end, size
from paceline.train.terminal import Sink, Terminal

REDRAWN_S = 0.25
_SHARE = 100
FIRST_S = 0.5
"""A run that is over sooner has no block."""


class Redrawn:
    """When it is time to draw again."""

    def __init__(self, began: float) -> None:
        self._next = began + FIRST_S

    def is_due(self, now: float) -> bool:
        return now >= self._next

    def drawn(self, began: float, ended: float) -> None:
        self._next = ended + max(REDRAWN_S, _SHARE * (ended - began))


class LiveTerminal(Terminal):
    """Where another run has the end of the terminal already, this one says its lines above it."""

    def __init__(
        self,
        layout: Layout,
        verbosity: int,
        notice_s: float,
        out: TextIO | None = None,
        *,
        config: Mapping[str, Any] | None = None,
        progress_s: float | None = None,
        colour: bool = True,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__(layout, verbosity, notice_s, out, config=config, progress_s=progress_s, clock=clock)
        self._terminal = out if out is not None else sys.stderr
        self._region = Region(self._terminal, colour)
        self._redrawn = Redrawn(clock())

    def _write(self, text: str) -> None:
        with its_end:
            if self._region.is_drawn:
                self._region.write(text)
            else:  # It may be another run's block that is there.
                super()._write(text)

    def _show_progress(self, run: Run) -> None:
        began = self._clock()
        if not self._redrawn.is_due(began):
            return
        width, height = size(self._terminal)
        is_drawn = width > 0 and self._region.draw(block(self._look(run), width - 1, height - 1))
        self._redrawn.drawn(began, self._clock())
        if is_drawn:
            self._is_shown = True
        else:
            super()._show_progress(run)

    def _end_progress(self) -> None:
        self._region.close()

    def _sink(self) -> Sink:
        return _Printed(self._region, self._terminal)


class _Printed:
    """To the terminal above the block; where standard output goes elsewhere, there."""

    def __init__(self, region: Region, terminal: TextIO) -> None:
        self._region = region
        self._terminal = terminal

    def write(self, text: str, /) -> object:
        with its_end:
            if self._region.is_drawn and is_same(sys.stdout, self._terminal):
                self._region.write(text)
            else:
                sys.stdout.write(text)
                sys.stdout.flush()
        return len(text)

    def flush(self) -> None:
        """It is written at once."""
