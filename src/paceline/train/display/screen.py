"""Where a run or a search is shown: lines of text, and below them one block that is redrawn, where that is possible.

A block is drawn at most four times a second, and less often if drawing would take more than 1 % of the driver's time.
On a terminal it disappears at the end; in a notebook it stays in the cell's output, with the final state.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from typing import Any, TextIO

from paceline._core import settings
from paceline.train.display.styled_lines import StyledLine, to_html, to_plain_text
from paceline.train.display.terminal_region import TERMINAL_LOCK, TerminalRegion, can_draw_on, terminal_size, write_to

REDRAW_INTERVAL_S = 0.25
_IDLE_FACTOR = 100
FIRST_DRAW_S = 0.5
"""Whatever ends sooner shows no block."""
NOTEBOOK_WIDTH, NOTEBOOK_HEIGHT = 100, 40

Render = Callable[[int, int], Sequence[StyledLine]]
"""Gives the block, for a width and a height."""


def open_screen(verbosity: int) -> Screen:
    """Choose for this process: a block on a terminal or in a notebook, only lines elsewhere."""
    current = settings.load()
    if verbosity >= 1:
        if _is_in_notebook():
            return NotebookScreen()
        if can_draw_on(sys.stderr, current.terminal):
            return TerminalScreen(colour=not current.no_color)
    return Screen()


class RedrawTimer:
    def __init__(self, began: float) -> None:
        self._next = began + FIRST_DRAW_S

    def is_due(self, now: float) -> bool:
        return now >= self._next

    def mark_drawn(self, began: float, ended: float) -> None:
        self._next = ended + max(REDRAW_INTERVAL_S, _IDLE_FACTOR * (ended - began))


class Screen:
    """Only lines: ours go to standard error, those of workers to standard output. Several threads may use it."""

    def __init__(self, out: TextIO | None = None) -> None:
        self._out = out
        self.has_block = False
        """Whether a block is drawn, or will be when it is time. Otherwise its owner prints lines instead."""

    def write(self, text: str) -> None:
        """Write whole lines of ours."""
        with TERMINAL_LOCK:
            write_to(self._out if self._out is not None else sys.stderr, text)

    def write_output(self, text: str) -> None:
        """Write whole lines of a worker's output."""
        with TERMINAL_LOCK:  # While a region is drawn, it replaces standard output.
            write_to(sys.stdout, text)

    def draw(self, render: Render) -> None:
        """Draw the block, if it is time. Updates `has_block`."""

    def close(self, render: Render) -> bool:
        """Draw the final block, where it stays; return whether one was removed. May be called more than once."""
        return False


class _BlockScreen(Screen):
    def __init__(self, out: TextIO | None = None, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__(out)
        self.has_block = True
        self._clock = clock
        self._timer = RedrawTimer(clock())

    def draw(self, render: Render) -> None:
        began = self._clock()
        if self._timer.is_due(began):
            self.has_block = self._draw_now(render)
            self._timer.mark_drawn(began, self._clock())

    def _draw_now(self, render: Render) -> bool:
        raise NotImplementedError


class TerminalScreen(_BlockScreen):
    """If another block is drawn on the terminal, there are lines above it."""

    def __init__(
        self, out: TextIO | None = None, *, colour: bool = True, clock: Callable[[], float] = time.monotonic
    ) -> None:
        super().__init__(out, clock)
        self._terminal = out if out is not None else sys.stderr
        self._region = TerminalRegion(self._terminal, colour)

    def write(self, text: str) -> None:
        with TERMINAL_LOCK:
            if self._region.is_drawn:
                self._region.write(text)
            else:  # Another block may be there.
                super().write(text)

    def close(self, render: Render) -> bool:
        was_drawn = self._region.is_drawn
        self._region.close()
        return was_drawn

    def _draw_now(self, render: Render) -> bool:
        width, height = terminal_size(self._terminal)
        return width > 0 and self._region.draw(render(width - 1, height - 1))


class NotebookScreen(_BlockScreen):
    """Shows the block below the cell. If the notebook rejects it, there are only lines."""

    _handle: Any = None
    _markup = ""

    def close(self, render: Render) -> bool:
        if self._handle is not None:
            self.has_block = self._draw_now(render)
        return False

    def _draw_now(self, render: Render) -> bool:
        if not self.has_block:
            return False
        lines = render(NOTEBOOK_WIDTH, NOTEBOOK_HEIGHT)
        try:
            self._show("\n".join(map(to_plain_text, lines)), to_html(lines))
        except Exception as problem:  # noqa: BLE001
            self.write(f"paceline: live view unavailable ({problem!r}); printing plain lines\n")
            return False
        return True

    def _show(self, text: str, markup: str) -> None:
        """Display the same content as plain text and as HTML: the frontend chooses."""
        if markup == self._markup:
            return
        from IPython.display import display

        self._markup = markup
        data = {"text/plain": text, "text/html": markup}
        if self._handle is None:
            self._handle = display(data, raw=True, display_id=True)  # type: ignore[no-untyped-call]
        else:
            self._handle.update(data, raw=True)


def show_in_notebook(text: str, *, overwrite: bool) -> None:
    """Show a text in the output of a notebook's cell, in place of all that is there or below it; else print it."""
    if not _is_in_notebook():
        print(text, flush=True)
        return
    from IPython.display import clear_output, display

    if overwrite:
        clear_output(wait=True)  # type: ignore[no-untyped-call]
    display({"text/plain": text}, raw=True)  # type: ignore[no-untyped-call]


def _is_in_notebook() -> bool:
    """Whether this process is a notebook kernel, as opposed to a shell on a terminal."""
    if "IPython" not in sys.modules:
        return False
    from IPython import get_ipython

    return getattr(get_ipython(), "kernel", None) is not None
