"""What a person sees of a search: one table that is redrawn, or a line for each thing that happened.

Ours goes to standard error. What rank 0 of a trial prints goes to standard output with the trial before it, `[00003]`,
and appears above the table; everything that every rank printed is in the log files of the trial's run. In a notebook
the table is in the cell's output: `notebook.py`.
"""

from __future__ import annotations

import atexit
import sys
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TextIO

from paceline._control.events import Failure
from paceline._control.run import Run
from paceline._storage.layout import Layout
from paceline._view import words
from paceline.train import region
from paceline.train.notebook import is_in_notebook
from paceline.train.terminal import Sink, Terminal
from paceline.tune.drive.events import Event, SearchEnded, TrialEnded
from paceline.tune.drive.state import Search
from paceline.tune.lines import Lines

if TYPE_CHECKING:
    from rich.console import Console

REDRAWN_S = 0.25
"""The table is redrawn so often at most."""
_SHARE = 20
"""And so rarely that drawing takes at most this part of the time, one in twenty."""


def terminal_of(name: str, uri: str, verbosity: int, out: TextIO | None = None) -> SearchTerminal:
    """A table in a notebook and where standard error is a terminal that can be redrawn, lines elsewhere.

    `name` and `uri` are the search's; `verbosity` as in `Settings`.
    """
    if verbosity >= 1 and out is None and is_in_notebook():
        from paceline.tune.notebook import NotebookTable

        return NotebookTable(name, uri, verbosity)
    stream = out if out is not None else sys.stderr
    if verbosity >= 1 and stream.isatty():
        from rich.console import Console

        console = Console(file=stream, highlight=False, markup=False, emoji=False)
        if not console.is_dumb_terminal:
            return TableTerminal(name, uri, verbosity, console)
    return SearchTerminal(name, uri, verbosity, out)


class SearchTerminal:
    """Says what happens, in lines. May be told and written to by several threads."""

    def __init__(
        self,
        name: str,
        uri: str,
        verbosity: int,
        out: TextIO | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.verbosity = verbosity
        self._out = out
        self._clock = clock
        self._lines = Lines(name, uri, verbosity)
        self._lock = threading.RLock()

    def say(self, text: str, *, error: bool = False) -> None:
        """A line of ours; with verbosity 0, only an error."""
        if self.verbosity >= 1 or error:
            with self._lock:
                self._write(f"paceline: {text}\n")

    def saw(self, event: Event, search: Search) -> None:
        """An event took effect, and this is the search after it."""
        if self.verbosity >= 1:
            for line in self._lines.of(event, search, self._clock()):
                self.say(line)

    def tick(self, search: Search, now: float) -> None:
        """Time passes by; `now` is that of the wall clock."""
        if self.verbosity >= 1:
            for line in self._lines.tick(search, self._clock()):
                self.say(line)

    def close(self) -> None:
        """Nothing follows. May be called more than once."""

    def pass_on(self, text: str) -> None:
        """What a trial printed: whole lines, each with the trial before it."""
        with self._lock:
            sys.stdout.write(text)
            sys.stdout.flush()

    def _write(self, text: str) -> None:
        out = self._out if self._out is not None else sys.stderr
        out.write(text)
        out.flush()


class DrawnTerminal(SearchTerminal):
    """Has a picture of the search that is brought up to date, and says in lines what is not in it."""

    def __init__(
        self,
        name: str,
        uri: str,
        verbosity: int,
        out: TextIO | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        from paceline.tune.table import Drawn

        super().__init__(name, uri, verbosity, out, clock)
        self._drawn = Drawn(name, uri)
        self._drawn_at = -float("inf")
        self._pause_s = REDRAWN_S

    def saw(self, event: Event, search: Search) -> None:
        if isinstance(event, TrialEnded) and event.ending != "interrupted":
            self._drawn.saw_end(event.trial)
        if isinstance(event, SearchEnded):
            self._draw_last(search)
        for line in self._said(event, search):
            self.say(line)

    def tick(self, search: Search, now: float) -> None:
        began = self._clock()
        if began - self._drawn_at >= self._pause_s:
            self._draw(search, now)
            self._drawn_at = self._clock()
            self._pause_s = max(REDRAWN_S, _SHARE * (self._drawn_at - began))

    def _said(self, event: Event, search: Search) -> list[str]:
        if self.verbosity >= 2 or isinstance(event, SearchEnded):
            return self._lines.of(event, search, self._clock())
        if isinstance(event, TrialEnded) and event.ending == "failed":
            return self._lines.of(event, search, self._clock())
        return []

    def _draw(self, search: Search, now: float) -> None:
        raise NotImplementedError

    def _draw_last(self, search: Search) -> None:
        """The search has ended."""
        raise NotImplementedError


class TableTerminal(DrawnTerminal):
    """Redraws one table. What is printed meanwhile, by anybody, appears above it.

    The cursor is never hidden and the screen never switched, so there is nothing to restore when the process is killed.
    """

    def __init__(
        self,
        name: str,
        uri: str,
        verbosity: int,
        console: Console,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        from rich.live import Live

        super().__init__(name, uri, verbosity, clock=clock)
        self._console = console
        self._live: Live | None = Live(
            console=console,
            auto_refresh=False,
            transient=True,
            # Where standard output goes to a file, it is to go there.
            redirect_stdout=sys.stdout.isatty(),
            redirect_stderr=True,
        )
        self._is_live = False

    def close(self) -> None:
        self._erase()

    def pass_on(self, text: str) -> None:
        if self._is_live and sys.stdout.isatty():
            with self._lock:
                self._write(text)
        else:
            super().pass_on(text)

    def _draw(self, search: Search, now: float) -> None:
        from paceline.tune.table import picture

        with self._lock:
            if self._live is None:
                return
            if not self._is_live:
                if not region.taken():
                    return
                self._live.start()
                self._console.show_cursor(True)
                self._is_live = True
                atexit.register(self._erase)
            width, height = self._console.size
            self._live.update(picture(search, self._drawn, now, width, height), refresh=True)

    def _draw_last(self, search: Search) -> None:
        self._erase()

    def _erase(self) -> None:
        with self._lock:
            live, self._live = self._live, None
            if live is not None and self._is_live:
                self._is_live = False
                live.stop()
                region.given_back()
                atexit.unregister(self._erase)

    def _write(self, text: str) -> None:
        if not self._is_live:
            self._console.file.write(text)
            self._console.file.flush()
            return
        from rich.text import Text

        self._console.print(Text.from_ansi(text.removesuffix("\n")), soft_wrap=True)


class TrialTerminal(Terminal):
    """The terminal of one trial's run: passes on what rank 0 prints, and says of the run only what went wrong."""

    def __init__(self, trial_id: str, layout: Layout, above: SearchTerminal, notice_s: float) -> None:
        super().__init__(layout, min(above.verbosity, 1), notice_s)
        self._trial_id = trial_id
        self._above = above
        self._printed = _Printed(above)
        self._failure = ""

    def say(self, text: str, *, error: bool = False) -> None:
        if error or self._above.verbosity >= 2:
            self._above.say(f"trial {self._trial_id}: {text}", error=error)

    def _say_again(self, text: str) -> None:
        because = f" after {words.first_line(self._failure)}" if self._failure else ""
        self._above.say(f"trial {self._trial_id} is tried again{because}: {text}")
        self._failure = ""

    def _show_failure(self, run: Run, failure: Failure) -> None:
        self._failure = failure.message
        super()._show_failure(run, failure)

    def _prefix(self, rank: int) -> str:
        return f"[{self._trial_id}] " if rank == 0 else f"[{self._trial_id} rank {rank}] "

    def _sink(self) -> Sink:
        return self._printed


class _Printed:
    def __init__(self, above: SearchTerminal) -> None:
        self._above = above

    def write(self, text: str, /) -> Any:
        self._above.pass_on(text)

    def flush(self) -> None:
        """It is written at once."""
