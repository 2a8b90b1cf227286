"""The terminal view of a search: one table that is redrawn, or a line per event.

Our output goes to standard error. Output of a trial's rank 0 goes to standard output with the trial as prefix,
`[00003]`, and appears above the table. In a notebook, the table is in the cell's output, updated in place.
"""

from __future__ import annotations

import atexit
import sys
import threading
import time
from collections.abc import Callable
from functools import cached_property
from typing import TYPE_CHECKING, TextIO

from paceline._control.events import WorkerFailure
from paceline._control.run import Run
from paceline._storage.run_layout import RunLayout
from paceline._view import formatting
from paceline.train.display import terminal_region
from paceline.train.display.notebook import HEIGHT, WIDTH, NotebookCell, is_in_notebook
from paceline.train.display.terminal import Terminal
from paceline.tune.display.log_lines import SearchLogLines
from paceline.tune.driver.events import Event, SearchEnded, TrialEnded
from paceline.tune.driver.search_state import Search

if TYPE_CHECKING:
    from rich.console import Console

    from paceline.tune.display.trial_table import TrialTableState

REDRAW_S = 0.25
"""Minimum time between redraws of the table."""
_DRAW_TIME_FACTOR = 20
"""Redraw less often if drawing is slow: it takes at most one twentieth of the time."""


def make_search_terminal(name: str, uri: str, verbosity: int, out: TextIO | None = None) -> SearchTerminal:
    """Create a table in a notebook or on a terminal that can be redrawn, lines elsewhere."""
    if verbosity >= 1 and out is None and is_in_notebook():
        return NotebookTable(name, uri, verbosity)
    stream = out if out is not None else sys.stderr
    if verbosity >= 1 and stream.isatty():
        from rich.console import Console

        console = Console(file=stream, highlight=False, markup=False, emoji=False)
        if not console.is_dumb_terminal:
            return TableSearchTerminal(name, uri, verbosity, console)
    return SearchTerminal(name, uri, verbosity, out)


class SearchTerminal:
    """Prints events as lines. Safe to call from several threads."""

    def __init__(
        self,
        name: str,
        uri: str,
        verbosity: int,
        out: TextIO | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.verbosity = verbosity
        self._name = name
        self._uri = uri
        self._out = out
        self._clock = clock
        self._lines = SearchLogLines(name, uri, verbosity)
        self._lock = threading.RLock()

    def say(self, text: str, *, error: bool = False) -> None:
        """Print a line of ours; with verbosity 0, only errors."""
        if self.verbosity >= 1 or error:
            with self._lock:
                self._write(f"paceline: {text}\n")

    def on_event(self, event: Event, search: Search) -> None:
        """Handle an event that has been applied to `search`."""
        if self.verbosity >= 1:
            for line in self._lines.format_event(event, search, self._clock()):
                self.say(line)

    def tick(self, search: Search, now: float) -> None:
        """Called periodically; `now` is the wall clock time."""
        if self.verbosity >= 1:
            for line in self._lines.format_summary(search, self._clock()):
                self.say(line)

    def close(self) -> None:
        """No more output follows. May be called more than once."""

    def write_trial_output(self, text: str) -> None:
        """Write a trial's output: whole lines, each prefixed with the trial."""
        with self._lock:
            sys.stdout.write(text)
            sys.stdout.flush()

    def _write(self, text: str) -> None:
        out = self._out if self._out is not None else sys.stderr
        out.write(text)
        out.flush()


class LiveSearchTerminal(SearchTerminal):
    """Keeps a live view of the search up to date, and prints as lines what the view does not show."""

    _drawn_at = -float("inf")
    _pause_s = REDRAW_S

    @cached_property
    def _table_state(self) -> TrialTableState:
        from paceline.tune.display.trial_table import TrialTableState

        return TrialTableState(self._name, self._uri)

    def on_event(self, event: Event, search: Search) -> None:
        if isinstance(event, TrialEnded) and event.ending != "interrupted":
            self._table_state.add_ended_trial(event.trial)
        if isinstance(event, SearchEnded):
            self._draw_last(search)
        for line in self._select_lines(event, search):
            self.say(line)

    def tick(self, search: Search, now: float) -> None:
        began = self._clock()
        if began - self._drawn_at >= self._pause_s:
            self._draw(search, now)
            self._drawn_at = self._clock()
            self._pause_s = max(REDRAW_S, _DRAW_TIME_FACTOR * (self._drawn_at - began))

    def _select_lines(self, event: Event, search: Search) -> list[str]:
        is_failure = isinstance(event, TrialEnded) and event.ending == "failed"
        if self.verbosity >= 2 or is_failure or isinstance(event, SearchEnded):
            return self._lines.format_event(event, search, self._clock())
        return []

    def _draw(self, search: Search, now: float) -> None:
        raise NotImplementedError

    def _draw_last(self, search: Search) -> None:
        """Draw the final state of the search."""
        raise NotImplementedError


class TableSearchTerminal(LiveSearchTerminal):
    """Redraws one table. Anything printed meanwhile, by anybody, appears above it.

    The cursor is never hidden and the screen never switched, so there is nothing to restore when the process is killed.
    """

    def __init__(
        self, name: str, uri: str, verbosity: int, console: Console, clock: Callable[[], float] = time.monotonic
    ) -> None:
        from rich.live import Live

        super().__init__(name, uri, verbosity, clock=clock)
        self._console = console
        self._live: Live | None = Live(
            console=console,
            auto_refresh=False,
            transient=True,
            # If standard output is redirected to a file, leave it alone.
            redirect_stdout=sys.stdout.isatty(),
            redirect_stderr=True,
        )
        self._is_live = False

    def write_trial_output(self, text: str) -> None:
        if self._is_live and sys.stdout.isatty():
            with self._lock:
                self._write(text)
        else:
            super().write_trial_output(text)

    def _draw(self, search: Search, now: float) -> None:
        from paceline.tune.display.trial_table import build_table

        with self._lock:
            if self._live is None:
                return
            if not self._is_live:
                if not terminal_region.DRAWING_LOCK.acquire(blocking=False):
                    return
                self._live.start()
                self._console.show_cursor(True)
                self._is_live = True
                atexit.register(self.close)
            width, height = self._console.size
            self._live.update(build_table(search, self._table_state, now, width, height), refresh=True)

    def _draw_last(self, search: Search) -> None:
        self.close()

    def close(self) -> None:
        with self._lock:
            live, self._live = self._live, None
            if live is not None and self._is_live:
                self._is_live = False
                live.stop()
                terminal_region.DRAWING_LOCK.release()
                atexit.unregister(self.close)

    def _write(self, text: str) -> None:
        if not self._is_live:
            self._console.file.write(text)
            self._console.file.flush()
            return
        from rich.text import Text

        self._console.print(Text.from_ansi(text.removesuffix("\n")), soft_wrap=True)


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
        if self._is_refused:
            return self._lines.format_event(event, search, self._clock())
        return super()._select_lines(event, search)

    def _draw(self, search: Search, now: float) -> None:
        from paceline.tune.display.trial_table import render_text_and_html

        with self._lock:
            try:
                self._cell.show(*render_text_and_html(search, self._table_state, now, WIDTH, HEIGHT))
            except Exception as problem:  # noqa: BLE001
                self._is_refused = True
                self.say(f"live view unavailable ({problem!r}); printing plain lines")

    def _draw_last(self, search: Search) -> None:
        if self._cell.is_shown and not self._is_refused:
            self._draw(search, time.time())


class TrialTerminal(Terminal):
    """The terminal of one trial's run: forwards the output of rank 0, and otherwise prints only problems."""

    def __init__(self, trial_id: str, layout: RunLayout, above: SearchTerminal, notice_s: float) -> None:
        super().__init__(layout, min(above.verbosity, 1), notice_s)
        self._trial_id = trial_id
        self._above = above
        self._failure = ""

    def say(self, text: str, *, error: bool = False) -> None:
        if error or self._above.verbosity >= 2:
            self._above.say(f"trial {self._trial_id}: {text}", error=error)

    def _announce_restart(self, text: str) -> None:
        because = f" after {formatting.first_line(self._failure)}" if self._failure else ""
        self._above.say(f"trial {self._trial_id} restarts{because}: {text}")
        self._failure = ""

    def _show_failure(self, run: Run, failure: WorkerFailure) -> None:
        self._failure = failure.message
        super()._show_failure(run, failure)

    def _prefix(self, rank: int) -> str:
        return f"[{self._trial_id}] " if rank == 0 else f"[{self._trial_id} rank {rank}] "

    def _write_worker_output(self, text: str) -> None:
        self._above.write_trial_output(text)
