"""The terminal view of a search: one table that is redrawn, or a line per event.

Our output goes to standard error. Output of a trial's rank 0 goes to standard output with the trial as prefix,
`[00003]`, and appears above the table. In a notebook, the table is in the cell's output, updated in place.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import Any

from paceline._control.events import WorkerFailure
from paceline._control.run import Run
from paceline._storage.run_layout import RunLayout
from paceline._view import formatting
from paceline.train.display.screen import Screen
from paceline.train.display.terminal import Terminal
from paceline.tune.display.log_lines import SearchLogLines
from paceline.tune.display.trial_table import TrialTable
from paceline.tune.driver.events import Event, SearchEnded, SearchStarted, TrialEnded
from paceline.tune.driver.search_state import Search


class SearchTerminal:
    """Draws a table and prints what it does not show, or prints all events as lines. Several threads may use it."""

    def __init__(
        self,
        name: str,
        uri: str,
        verbosity: int,
        screen: Screen | None = None,
        clock: Callable[[], float] = time.monotonic,
        *,
        has_reporter: bool = False,
    ) -> None:
        """`has_reporter`: the user's progress reporter shows the trials, in place of the table and the lines."""
        self.verbosity = verbosity
        self._has_reporter = has_reporter
        self.screen = screen if screen is not None else Screen()
        self._clock = clock
        self._lines = SearchLogLines(name, uri, verbosity)
        self._table = TrialTable(name, uri)
        self._search: Search | None = None

    def say(self, text: str, *, error: bool = False) -> None:
        """Print a line of ours; with verbosity 0, only errors."""
        if self.verbosity >= 1 or error:
            self.screen.write(f"paceline: {text}\n")

    def on_event(self, event: Event, search: Search) -> None:
        """Handle an event that has been applied to `search`."""
        if self.verbosity < 1:
            return
        self._search = search
        is_failure = isinstance(event, TrialEnded) and event.ending == "failed"
        if isinstance(event, TrialEnded) and event.ending != "interrupted":
            self._table.add_ended_trial(event.trial)
        if isinstance(event, SearchEnded):
            self.close()
        is_shown = self.screen.has_block or self._has_reporter
        if self.verbosity >= 2 or not is_shown or is_failure or isinstance(event, SearchEnded):
            for line in self._lines.format_event(event, search, self._clock()):
                self.say(line)

    def tick(self, search: Search, now: float) -> None:
        """Called periodically; `now` is the wall clock time."""
        if self.verbosity < 1 or self._has_reporter:
            return
        self.screen.draw(partial(self._table.render, search, now))
        if not self.screen.has_block:
            for line in self._lines.format_summary(search, self._clock()):
                self.say(line)

    def close(self) -> None:
        """Draw the final table where it stays, and remove it elsewhere. May be called more than once."""
        if self._search is not None:
            self.screen.close(partial(self._table.render, self._search, time.time()))


class ReporterObserver:
    """Asks the user's progress reporter, and lets it report, when events occur and periodically."""

    def __init__(self, reporter: Any, scheduler: str, count_trials: Callable[[], int | None]) -> None:
        """`count_trials` returns how many trials there will be, if that is known."""
        self._reporter = reporter
        self._system_info = f"Using {scheduler}"
        self._count_trials = count_trials

    def on_event(self, event: Event, search: Search) -> None:
        if isinstance(event, SearchStarted) and hasattr(self._reporter, "setup"):
            total_samples = self._count_trials()
            self._reporter.setup(event.at, total_samples=total_samples, metric=search.metric, mode=search.mode)
        self._ask(search, done=isinstance(event, SearchEnded))

    def tick(self, search: Search, now: float) -> None:
        self._ask(search, done=False)

    def _ask(self, search: Search, *, done: bool) -> None:
        trials = list(search.trials.values())
        if self._reporter.should_report(trials, done=done):
            self._reporter.report(trials, done, self._system_info)


class TrialTerminal(Terminal):
    """The terminal of one trial's run: forwards the output of rank 0, and otherwise prints only problems."""

    def __init__(self, label: str, layout: RunLayout, above: SearchTerminal, notice_s: float) -> None:
        super().__init__(layout, min(above.verbosity, 1), notice_s, above.screen)
        self._label = label
        self._above = above
        self._failure = ""

    def say(self, text: str, *, error: bool = False) -> None:
        if error or self._above.verbosity >= 2:
            self._above.say(f"trial {self._label}: {text}", error=error)

    def _announce_restart(self, text: str) -> None:
        because = f" after {formatting.first_line(self._failure)}" if self._failure else ""
        self._above.say(f"trial {self._label} restarts{because}: {text}")
        self._failure = ""

    def _show_failure(self, run: Run, failure: WorkerFailure) -> None:
        self._failure = failure.message
        super()._show_failure(run, failure)

    def _prefix(self, rank: int) -> str:
        return f"[{self._label}] " if rank == 0 else f"[{self._label} rank {rank}] "
