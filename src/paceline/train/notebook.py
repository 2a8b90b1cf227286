"""What a person in a notebook sees of a run: the same block as on a terminal, in the cell's output, brought up to date
in place. What is printed meanwhile comes below it.
"""

from __future__ import annotations

import html
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TextIO

from paceline._control.run import Run
from paceline._storage.layout import Layout
from paceline.train.block import Line, block, plain
from paceline.train.live import Redrawn
from paceline.train.terminal import Terminal

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
    """Whether this is the kernel of a notebook, and no shell at a terminal."""
    if "IPython" not in sys.modules:
        return False
    from IPython import get_ipython

    return getattr(get_ipython(), "kernel", None) is not None


class Cell:
    """One output of the cell that runs, brought up to date in place."""

    def __init__(self) -> None:
        self._handle: Any = None
        self._shown = ""

    @property
    def is_shown(self) -> bool:
        return self._handle is not None

    def show(self, text: str, markup: str) -> None:
        """The same in two forms: for where there is no HTML, and for where there is. Raises what displaying raises."""
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
    """Its block stays below the cell as the run's last state."""

    def __init__(
        self,
        layout: Layout,
        verbosity: int,
        notice_s: float,
        out: TextIO | None = None,
        *,
        config: Mapping[str, Any] | None = None,
        progress_s: float | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__(layout, verbosity, notice_s, out, config=config, progress_s=progress_s, clock=clock)
        self._redrawn = Redrawn(clock())
        self._cell = Cell()
        self._is_refused = False

    def _show_progress(self, run: Run) -> None:
        began = self._clock()
        if self._is_refused:
            super()._show_progress(run)
        elif self._redrawn.is_due(began):
            self._draw(run)
            self._redrawn.drawn(began, self._clock())

    def _end_progress(self) -> None:
        if self._cell.is_shown and self._run is not None and not self._is_refused:
            self._draw(self._run)

    def _draw(self, run: Run) -> None:
        lines = block(self._look(run), WIDTH, HEIGHT)
        try:
            self._cell.show("\n".join(plain(line) for line in lines), as_html(lines))
        except Exception as problem:  # noqa: BLE001  of whatever shows the notebook; the run has nothing to do with it
            self._is_refused = True
            self.say(f"what is seen of the run cannot be displayed here ({problem!r}): there are lines instead")


def as_html(lines: Sequence[Line]) -> str:
    """Every text escaped: nothing that a run says is markup."""
    text = "\n".join("".join(_piece(text, style) for text, style in line) for line in lines)
    return f'<pre style="line-height:1.25">{text}</pre>'


def _piece(text: str, style: str) -> str:
    css = ";".join(_STYLES[word] for word in style.split())
    escaped = html.escape(text)
    return f'<span style="{css}">{escaped}</span>' if css else escaped
