"""The live view of a run in a notebook: the same block as on a terminal, updated in place in the cell's output. Other
output appears below it.
"""

from __future__ import annotations

import html
import sys
from collections.abc import Sequence
from typing import Any

from paceline._control.run import Run
from paceline.train.display.live_terminal import RedrawTimer
from paceline.train.display.snapshot_rendering import StyledLine, render_block, to_plain_text
from paceline.train.display.terminal import Terminal

WIDTH, HEIGHT = 100, 40
_STYLES = {
    "bold": "font-weight:bold",
    "dim": "opacity:0.6",
    "red": "color:#c62828",
    "green": "color:#2e7d32",
    "yellow": "color:#b26a00",
    "cyan": "color:#00838f",
}


def is_in_notebook() -> bool:
    """Whether this process is a notebook kernel, as opposed to a shell on a terminal."""
    if "IPython" not in sys.modules:
        return False
    from IPython import get_ipython

    return getattr(get_ipython(), "kernel", None) is not None


class NotebookCell:
    """One output of the running cell, updated in place."""

    def __init__(self) -> None:
        self._handle: Any = None
        self._shown = ""

    @property
    def is_shown(self) -> bool:
        return self._handle is not None

    def show(self, text: str, markup: str) -> None:
        """Display the same content as plain text and as HTML; the frontend chooses. Lets display errors through."""
        if markup == self._shown:
            return
        from IPython.display import display

        self._shown = markup
        data = {"text/plain": text, "text/html": markup}
        if self._handle is None:
            self._handle = display(data, raw=True, display_id=True)  # type: ignore[no-untyped-call]
        else:
            self._handle.update(data, raw=True)


class NotebookTerminal(Terminal):
    """Shows the block below the cell. It stays there with the run's final state."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._redraw_timer = RedrawTimer(self._clock())
        self._cell = NotebookCell()
        self._has_display_failed = False

    def _show_progress(self, run: Run) -> None:
        began = self._clock()
        if self._has_display_failed:
            super()._show_progress(run)
        elif self._redraw_timer.is_due(began):
            self._draw(run)
            self._redraw_timer.mark_drawn(began, self._clock())

    def _end_progress(self) -> None:
        if self._cell.is_shown and self._run is not None and not self._has_display_failed:
            self._draw(self._run)

    def _draw(self, run: Run) -> None:
        lines = render_block(self._take_snapshot(run), WIDTH, HEIGHT)
        try:
            self._cell.show("\n".join(to_plain_text(line) for line in lines), render_html(lines))
        except Exception as problem:  # noqa: BLE001
            self._has_display_failed = True
            self.say(f"live view unavailable ({problem!r}); printing plain lines")


def render_html(lines: Sequence[StyledLine]) -> str:
    """Render lines as HTML. All text is escaped, so a run's output is never markup."""
    text = "\n".join("".join(_render_piece(text, style) for text, style in line) for line in lines)
    return f'<pre style="line-height:1.25">{text}</pre>'


def _render_piece(text: str, style: str) -> str:
    css = ";".join(_STYLES[word] for word in style.split())
    escaped = html.escape(text)
    return f'<span style="{css}">{escaped}</span>' if css else escaped
