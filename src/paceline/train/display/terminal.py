"""The terminal output of a run: a line per event, occasional progress lines, and the output of rank 0.

Our lines go to standard error, prefixed with `paceline:`. The output of rank 0 goes to standard output, prefixed with
its rank. The log files contain the full output of every rank. On a terminal and in a notebook, a live block replaces
the progress lines: `screen.py`.
"""

from __future__ import annotations

import logging
import os
import sys
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from paceline._control import events
from paceline._control.retry_policy import first_failure
from paceline._control.run import (
    BackingOff,
    Finished,
    PendingCheckpoint,
    Restoring,
    Run,
    Running,
    Stopping,
    Validating,
    Waiting,
)
from paceline._core import settings
from paceline._core.arguments import flatten_dict
from paceline._core.checkpoint_records import CheckpointRecord
from paceline._core.plain_values import decode_plain, get_metric
from paceline._storage.run_layout import RunLayout
from paceline._view import formatting
from paceline.train.display.live_run import LiveRun
from paceline.train.display.run_block import format_progress_line, render_block
from paceline.train.display.screen import Screen, open_screen
from paceline.train.display.styled_lines import StyledLine
from paceline.train.display.terminal_region import is_same_terminal

log = logging.getLogger("paceline")

MAX_TAIL_LINES = 40
"""How many lines of a failing rank's output to show; its log has all of them."""


def make_terminal(
    layout: RunLayout,
    config: Mapping[str, Any] | None = None,
    *,
    inline: bool = False,
    verbosity: int | None = None,
) -> Terminal:
    """Choose the view for this process: a live block on a terminal or in a notebook, plain lines elsewhere.

    `config` is the train function's config, which may say when the run is done. `inline`: the function runs in this
    process, where a debugger may use the terminal, so nothing is drawn. `verbosity`: instead of the setting.
    """
    current = settings.load()
    verbosity = current.verbosity if verbosity is None else verbosity
    progress_s = None if inline and is_same_terminal(sys.stderr, sys.stderr) else current.progress_s
    screen = Screen() if inline else open_screen(verbosity)
    return Terminal(layout, verbosity, current.report_notice_s, screen, config=config, progress_s=progress_s)


class Terminal:
    """An observer that prints. `verbosity` as in `Settings`.

    With `progress_s`, shows progress: as a block, or as a line every `progress_s` seconds.
    """

    def __init__(
        self,
        layout: RunLayout,
        verbosity: int,
        notice_s: float,
        screen: Screen | None = None,
        *,
        config: Mapping[str, Any] | None = None,
        progress_s: float | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._layout = layout
        self._verbosity = verbosity
        self._notice_s = notice_s
        self._screen = screen if screen is not None else Screen()
        self._clock = clock
        self._progress_s = progress_s
        self._progress_at = clock()
        self._has_shown_progress = False
        self._tail: LogTail | None = None
        self._attempt = self._size = 0
        self._shown_cause = (0, False)
        """The last attempt whose failure was shown, and whether that was the cause, not a secondary failure."""
        self._announced_waits: set[tuple[int, int]] = set()
        self._has_warned_unranked = self._has_warned_unsaved = False
        self._is_output_closed = False
        """Nobody reads the output: the terminal was closed, or the reading process has ended."""
        self.storage_uri = str(layout.root)
        """Where the run is stored, for messages."""
        self._hosts: dict[int, str] = {}
        """Of the ranks of this attempt that are ready."""
        self._live_run = LiveRun(layout.root.name, config, time.time())
        self._run: Run | None = None

    def say(self, text: str, *, error: bool = False) -> None:
        if self._verbosity >= 1 or error:
            self._try_output(lambda: self._screen.write(f"paceline: {text}\n"))

    def on_event(self, event: events.Event, run: Run) -> None:
        self._run = run
        if self._verbosity >= 1:
            reports = self._live_run.add_event(event, run, time.time())
            for report in reports if self._verbosity >= 2 else ():
                self.say(f"report {report.seq}: {formatting.values(report.metrics)}")
        if type(event) is events.Reported:  # There are many, and none is printed.
            return
        if isinstance(run.phase, Running) and run.attempt > self._attempt:
            self._announce_attempt(run)
        match event:
            case events.WorkerReady(rank=rank, host=host):
                self._hosts[rank] = host
            case events.Committed(record=record):
                if self._verbosity >= 2:
                    self.say(f"{record.name} committed ({formatting.size(record.num_bytes)})")
                self._warn_if_unranked(record, run.retention.score_attribute)
            case events.CommitFailed(seq=seq, error=error):
                self.say(f"cannot commit the checkpoint of report {seq}: {error}", error=True)
            case events.StagingFailed(seq=seq, error=error, is_skipped=True):
                if self._verbosity >= 2:
                    self.say(f"skipped the checkpoint of report {seq}: {error}")
            case events.StagingFailed(rank=rank, seq=seq, error=error):
                self.say(f"{self._name_rank(rank)} cannot store the checkpoint of report {seq}: {error}", error=True)
            case events.CheckpointBroken(problem=problem):
                self.say(f"skipping a corrupt checkpoint: {problem}", error=True)
                if run.latest is None:
                    start = run.initial or "the beginning"
                    self.say(f"no checkpoint of the run is left: starting from {start}", error=True)
            case events.WorkerFailed() | events.DeadlinePassed():
                self._show_cause(run)
            case events.PreemptionNoticeReceived(grace_s=grace_s) if not run.is_trained:
                machine = "this machine" if event.includes_driver else f"the machine of {_format_ranks(event.ranks)}"
                then = f"stopping at the next report (grace period: {grace_s:.0f} s)"
                self.say(f"{machine} is about to be preempted: {then}")
            case events.WorkerHeld(rank=0, asks=False, saves=False) if isinstance(run.phase, Running):
                self._warn_if_unsaved(run, run.phase)
            case events.ValidationEnded(name=name, status="VALIDATED", metrics=metrics):
                if self._verbosity >= 2:
                    self.say(f"{name} is validated: {formatting.values(decode_plain(metrics))}")
            case events.ValidationEnded(name=name, problem=problem):
                self.say(f"cannot validate {name}: {problem}. See {self._layout.validation_log(name)}")
            case events.StopRequested() if run.is_trained:
                pass  # The end of the run reports what is left undone.
            case events.HangSuspected(failure=failure, action=action):
                then = {"warn": "", "restart": "; restarting the workers", "fail": "; ending the run"}[action]
                self.say(f"{failure.message}; all stacks: {self._layout.stacks(run.attempt)}{then}", error=True)
            case events.HangCleared(rank=rank, after_s=after_s):
                self.say(f"rank {rank} continues after {after_s:.0f} s", error=True)
            case events.ExitDelayed():
                self.say(f"{event.message} (before returning, join threads and child processes)", error=True)
            case events.StopRequested(now=False):
                self.say("stopping at the next report; press Ctrl-C again to stop now")
            case events.CapacityChanged(num_places=num_places) if isinstance(run.phase, Waiting):
                needed = formatting.format_count(run.sizes[0], "worker")
                self.say(f"waiting for resources: the run needs {needed}, {num_places} fit")
        has_ended = isinstance(event, events.WorkersStopped | events.Committed | events.CommitFailed)
        if has_ended and isinstance(run.phase, BackingOff) and run.phase.delay_s > 0:
            self.say(f"retrying in {round(run.phase.delay_s, 1):g} s")
        if has_ended and isinstance(run.phase, Validating):
            validations = formatting.format_count(len(run.pending_validations), "validation")
            self.say(f"training is done; {validations} left to do")
        if isinstance(run.phase, BackingOff | Finished | Restoring | Stopping | Validating):
            self._read_tail()

    def tick(self, run: Run, now: float) -> None:
        self._read_tail()
        if isinstance(run.phase, Running):
            for pending in run.phase.pending:
                key = (run.attempt, pending.seq)
                if now - pending.since > self._notice_s and key not in self._announced_waits:
                    self._announced_waits.add(key)
                    behind = [rank for rank in range(run.size) if run.phase.progress[rank] < pending.seq]
                    self.say(
                        self._format_wait(pending, run.phase, behind, now)
                        if behind
                        else self._format_store_wait(pending, now)
                    )
        if self._progress_s is not None and self._verbosity >= 1 and not isinstance(run.phase, Finished):
            self._try_output(lambda: self._show_progress(run))

    def close(self) -> None:
        self._read_tail(final=True)
        run = self._run
        if run is None or self._progress_s is None:
            return
        self._try_output(lambda: self._end_progress(run))
        if isinstance(run.phase, Finished) and run.phase.ending != "failed" and self._has_shown_progress:
            self._has_shown_progress = False
            self._print_progress(run)

    def _show_progress(self, run: Run) -> None:
        self._screen.draw(partial(self._render_block, run))
        now = self._clock()
        if not self._screen.has_block and self._progress_s is not None and now - self._progress_at >= self._progress_s:
            self._progress_at, self._has_shown_progress = now, True
            self._print_progress(run)

    def _end_progress(self, run: Run) -> None:
        self._has_shown_progress |= self._screen.close(partial(self._render_block, run))

    def _render_block(self, run: Run, width: int, height: int) -> list[StyledLine]:
        now = time.time()
        return render_block(self._live_run.take_snapshot(run, now), self._live_run.traces, now, width, height)

    def _print_progress(self, run: Run) -> None:
        now = time.time()
        self.say(format_progress_line(self._live_run.take_snapshot(run, now), now))

    def _announce_attempt(self, run: Run) -> None:
        self._read_tail(final=True)
        if self._attempt:
            since = f"checkpoint {run.latest.name}" if run.latest else "the beginning"
            workers = formatting.format_count(run.size, "worker")
            resize = f", with {workers} where there were {self._size}" if run.size != self._size else ""
            self._announce_restart(f"attempt {run.attempt}, from {since}{resize}")
        self._attempt, self._size, self._hosts = run.attempt, run.size, {}
        self._tail = LogTail(self._layout.log(run.attempt, 0), self._prefix(0)) if self._verbosity >= 1 else None

    def _format_wait(self, pending: PendingCheckpoint, running: Running, behind: list[int], now: float) -> str:
        counts = ", ".join(f"{self._name_rank(rank)} has made {running.progress[rank]}" for rank in behind[:4])
        more = f" and {len(behind) - 4} more" if len(behind) > 4 else ""
        return (
            f"rank {pending.rank} has waited {now - pending.since:.0f} s in report {pending.seq} with a checkpoint, "
            f"called at {pending.where}: {counts}{more}. Every rank must call report() the same number of times"
        )

    def _format_store_wait(self, pending: PendingCheckpoint, now: float) -> str:
        ranks = sorted(rank for rank, _ in pending.unstaged.items())
        named = ", ".join(map(self._name_rank, ranks[:4])) + (f" and {len(ranks) - 4} more" if len(ranks) > 4 else "")
        return (
            f"report {pending.seq} has waited {now - pending.since:.0f} s for its files to be stored in "
            f"{self.storage_uri}: still storing: {named}"
        )

    def _name_rank(self, rank: int) -> str:
        """Name a rank, with its host if there are several."""
        host = self._hosts.get(rank, "")
        return (
            f"rank {rank} on {formatting.escape_unprintable(host)}"
            if len({*self._hosts.values()}) > 1
            else f"rank {rank}"
        )

    def _show_failure(self, run: Run, failure: events.WorkerFailure) -> None:
        """Show the end of the failing rank's output, including its traceback."""
        self._read_tail(final=True)
        self.say(f"rank {failure.rank} failed: {failure.message}")
        if failure.rank != 0 and self._verbosity >= 1:
            tail = LogTail(self._layout.log(run.attempt, failure.rank), self._prefix(failure.rank))
            self._try_output(lambda: tail.forward_lines(self._screen.write_output, final=True, at_most=MAX_TAIL_LINES))

    def _show_cause(self, run: Run) -> None:
        """Show the first failure of an attempt once it ends; again if it was secondary, and its cause is known now."""
        phase = run.phase
        if not isinstance(phase, Stopping) and not (isinstance(phase, Running) and phase.is_draining):
            return
        known = (run.attempt, not phase.failed.are_all_secondary)
        if phase.failed and known > self._shown_cause:
            self._shown_cause = known
            self._show_failure(run, first_failure(tuple(phase.failed)))

    def _warn_if_unsaved(self, run: Run, phase: Running) -> None:
        if phase.notices is None or self._has_warned_unsaved:
            return
        self._has_warned_unsaved = True
        newest = f"the last checkpoint, {run.latest.name}," if run.latest is not None else "the beginning"
        self.say(
            f"nothing newer than {newest} will be saved: pass checkpoint_on_stop=... to train.report() "
            "to save a checkpoint when the run stops"
        )

    def _warn_if_unranked(self, record: CheckpointRecord, attribute: str | None) -> None:
        """Warn about a misspelt attribute: it would silently delete all checkpoints but the newest."""
        if attribute is None or self._has_warned_unranked or record.status == "PENDING_VALIDATION":
            return
        metrics = decode_plain(record.metrics)
        if isinstance(get_metric(metrics, attribute), int | float):
            return
        self._has_warned_unranked = True
        names = [formatting.escape_unprintable(name) for name in flatten_dict(metrics)][:12]
        self.say(
            f"{record.name} ranks last: it has no number {attribute!r} (checkpoint_score_attribute) among its metrics "
            f"{', '.join(names) or '(none)'}",
            error=True,
        )

    def _read_tail(self, final: bool = False) -> None:
        tail = self._tail
        if tail is not None:
            self._try_output(lambda: tail.forward_lines(self._screen.write_output, final))

    def _try_output(self, act: Callable[[], None]) -> None:
        """Write output; once nobody reads it, the run continues silently."""
        if self._is_output_closed:
            return
        try:
            act()
        except (OSError, ValueError) as problem:  # A closed pipe, or a closed stream.
            self._is_output_closed = True
            log.warning("terminal output disabled for run %s: %s", self._layout.root.name, problem)

    # Overridden by the terminal of a trial.

    def _announce_restart(self, text: str) -> None:
        self.say(text)

    def _prefix(self, rank: int) -> str:
        return f"[rank {rank}] "


_MAX_TAIL_BYTES = 1 << 20
"""How much of a log is read for its last lines."""


class LogTail:
    """Forwards lines that are appended to a log file."""

    def __init__(self, path: Path, prefix: str) -> None:
        self._path = path
        self._prefix = prefix
        self._position = 0
        self._partial = b""

    def forward_lines(self, write: Callable[[str], object], final: bool = False, at_most: int | None = None) -> None:
        try:
            if (size := os.stat(self._path).st_size) > self._position:
                if at_most is not None:
                    self._position = max(self._position, size - _MAX_TAIL_BYTES)
                with self._path.open("rb") as file:
                    file.seek(self._position)
                    data = file.read()
                self._position += len(data)
                self._partial += data
        except FileNotFoundError:
            return
        *lines, self._partial = self._partial.split(b"\n")
        if final and self._partial:
            lines.append(self._partial)
            self._partial = b""
        if at_most is not None:
            lines = lines[-at_most:]
        if lines:
            # A progress bar returns to the start of its line: show only its last state.
            shown = (line.rsplit(b"\r", 1)[-1].decode("utf-8", "replace") for line in lines)
            write("".join(f"{self._prefix}{line}\n" for line in shown))


def _format_ranks(ranks: tuple[int, ...]) -> str:
    named = ", ".join(map(str, ranks))
    return f"rank {named}" if len(ranks) == 1 else f"ranks {named}"
