"""What a person sees of a run: a line for each thing that happened, one now and then of how far it is, and the output
of rank 0.

Ours goes to standard error, with `paceline:` before it; what rank 0 prints goes to standard output, with its rank
before it. Everything that every rank printed is in the log files. On a terminal and in a notebook there is a block in
the place of the lines of how far it is: `live.py` and `notebook.py`.
"""

from __future__ import annotations

import logging
import os
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol, TextIO

import msgspec

from paceline._control.events import (
    CapacityChanged,
    CheckpointBroken,
    CommitFailed,
    Committed,
    Event,
    Failure,
    HangPassed,
    HangSuspected,
    PreemptionTold,
    Reported,
    StagingFailed,
    StopRequested,
    ValidationEnded,
    WorkerFailed,
    WorkersStopped,
)
from paceline._control.policy import first_failure
from paceline._control.run import Finished, Pending, Restoring, Run, Running, Stopping, Validating, Waiting
from paceline._core import settings
from paceline._core.plain import looked_up, unplain
from paceline._engine.messages import CheckpointRecord
from paceline._storage.layout import Layout
from paceline._view import words
from paceline.train.block import in_one_line
from paceline.train.result import flat
from paceline.train.seen import Seen, Watching

log = logging.getLogger("paceline")

LAST_LINES = 40
"""Of a failing rank's output, what is shown; all of it is in its log."""


class Sink(Protocol):
    """What the output of workers is passed on to."""

    def write(self, text: str, /) -> object: ...
    def flush(self) -> None: ...


def terminal_of(layout: Layout, config: Mapping[str, Any] | None = None, *, inline: bool = False) -> Terminal:
    """The one for where this process is: a block on a terminal and in a notebook, lines elsewhere.

    `config` is what the train function is called with: it may tell when the run is done. `inline`: the function runs in
    this process, where a debugger may have the terminal, and nobody draws on it.
    """
    from paceline.train import live, notebook, region

    chosen = settings.load()
    given = layout, chosen.verbosity, chosen.report_notice_s
    told: dict[str, Any] = {"config": config, "progress_s": chosen.progress_s}
    if inline and sys.stderr.isatty():
        told["progress_s"] = None
    elif chosen.verbosity >= 1 and not inline:
        if notebook.is_in_notebook():
            return notebook.NotebookTerminal(*given, **told)
        if region.can_be_drawn_on(sys.stderr, chosen.terminal):
            return live.LiveTerminal(*given, **told, colour=not chosen.no_color)
    return Terminal(*given, **told)


class Terminal:
    """An observer that prints. `verbosity` as in `Settings`.

    With `progress_s` there is a line of how far the run is every so many seconds.
    """

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
        self._layout = layout
        self._verbosity = verbosity
        self._notice_s = notice_s
        self._out = out
        self._clock = clock
        self._progress_s = progress_s
        self._progress_at = clock()
        self._is_shown = False
        """How far it is, at least once."""
        self._tail: LogTail | None = None
        self._attempt = self._size = 0
        self._failed = 0
        self._noticed: set[tuple[int, int]] = set()
        self._is_unranked_told = False
        self._is_gone = False
        """There is nobody to be told: the terminal was closed, or what read our output has ended."""
        self._watching = Watching(layout.root.name, config, time.time())
        self._run: Run | None = None

    def say(self, text: str, *, error: bool = False) -> None:
        if self._verbosity >= 1 or error:
            self._tell(lambda: self._write(f"paceline: {text}\n"))

    def saw(self, event: Event, run: Run) -> None:
        self._run = run
        if self._verbosity >= 1:
            self._watch(event, run)
        if type(event) is Reported:  # There are many, and nothing else is said of them.
            return
        if isinstance(run.phase, Running) and run.attempt > self._attempt:
            self._attempt_began(run)
        match event:
            case Committed(record=record):
                if self._verbosity >= 2:
                    self.say(f"{record.name} committed ({words.size(record.num_bytes)})")
                self._show_unranked(record, run.retention.score_attribute)
            case CommitFailed(seq=seq, error=error):
                self.say(f"the checkpoint of report {seq} could not be committed: {error}", error=True)
            case StagingFailed(rank=rank, seq=seq, error=error):
                self.say(f"the checkpoint of report {seq} could not be stored by rank {rank}: {error}", error=True)
            case CheckpointBroken(problem=problem):
                self.say(f"a checkpoint cannot be trusted and is passed over: {problem}", error=True)
                if run.latest is None:
                    where = f"from {run.initial}, which it was given" if run.initial else "anew"
                    self.say(f"no checkpoint of the run is left: it begins {where}", error=True)
            case WorkerFailed() if isinstance(run.phase, Stopping) and self._failed < run.attempt:
                self._failed = run.attempt
                self._show_failure(run, first_failure(run.phase.failures))
            case PreemptionTold(grace_s=grace_s, ranks=ranks, whole=whole) if not run.is_trained:
                what = "this machine" if whole else f"the machine of {_ranks(ranks)}"
                self.say(
                    f"{what} is about to be taken away: stopping at the next report, "
                    f"for which there are {grace_s:.0f} s"
                )
            case ValidationEnded(name=name, status="VALIDATED", metrics=metrics):
                if self._verbosity >= 2:
                    self.say(f"{name} is validated: {words.values(unplain(msgspec.json.decode(metrics)))}")
            case ValidationEnded(name=name, problem=problem):
                self.say(f"{name} could not be validated: {problem}. See {self._layout.validation_log(name)}")
            case StopRequested() if run.is_trained:
                pass  # What is left undone is said at the end.
            case HangSuspected(failure=failure, action=action):
                then = {"warn": "", "restart": "; the workers are ended", "fail": "; the run is ended"}[action]
                self.say(f"{failure.message}; all stacks: {self._layout.stacks(run.attempt)}{then}", error=True)
            case HangPassed(rank=rank, after_s=after_s):
                self.say(f"rank {rank} moves again after {after_s:.0f} s", error=True)
            case StopRequested(now=False):
                self.say("stopping at the next report; press Ctrl-C again to stop now")
            case CapacityChanged(num_places=num_places) if isinstance(run.phase, Waiting):
                self.say(f"waiting for room: {words.counted(run.sizes[0], 'worker')} are needed, {num_places} fit")
        if isinstance(run.phase, Validating) and isinstance(event, WorkersStopped | Committed | CommitFailed):
            self.say(f"the training is over; {words.counted(len(run.unvalidated), 'validation')} still to be made")
        if isinstance(run.phase, Finished | Restoring | Stopping | Validating):
            self._read_tail()

    def _watch(self, event: Event, run: Run) -> None:
        reports = self._watching.told(event, run)
        if self._verbosity >= 2:
            for report in reports:
                self.say(f"report {report.seq}: {words.values(report.metrics)}")
        if type(event) is not Reported:
            self._watching.heard(event, run, time.time())

    def tick(self, run: Run, now: float) -> None:
        self._read_tail()
        if isinstance(run.phase, Running):
            for pending in run.phase.pending:
                key = (run.attempt, pending.seq)
                if now - pending.since > self._notice_s and key not in self._noticed:
                    self._noticed.add(key)
                    self.say(_waiting(pending, run.phase, run.size, now))
        if self._progress_s is not None and self._verbosity >= 1 and not isinstance(run.phase, Finished):
            self._tell(lambda: self._show_progress(run))

    def close(self) -> None:
        self._read_tail(final=True)
        self._tell(self._end_progress)
        run = self._run
        if self._is_shown and run is not None and isinstance(run.phase, Finished) and run.phase.ending != "failed":
            self._is_shown = False
            self.say(in_one_line(self._look(run)))

    def _look(self, run: Run) -> Seen:
        return self._watching.look(run, time.time())

    # What is done otherwise where there is a block.

    def _write(self, text: str) -> None:
        """Lines of ours."""
        out = self._out if self._out is not None else sys.stderr
        out.write(text)
        out.flush()

    def _show_progress(self, run: Run) -> None:
        now = self._clock()
        if self._progress_s is not None and now - self._progress_at >= self._progress_s:
            self._progress_at, self._is_shown = now, True
            self.say(in_one_line(self._look(run)))

    def _end_progress(self) -> None:
        """Nothing more is shown of it."""

    def _attempt_began(self, run: Run) -> None:
        self._read_tail(final=True)
        if self._attempt:
            since = f"checkpoint {run.latest.name}" if run.latest else "the beginning"
            self._say_again(f"attempt {run.attempt}, from {since}{self._resized(run)}")
        self._attempt, self._size = run.attempt, run.size
        self._tail = LogTail(self._layout.log(run.attempt, 0), self._prefix(0)) if self._verbosity >= 1 else None

    def _resized(self, run: Run) -> str:
        if run.size == self._size:
            return ""
        return f", with {words.counted(run.size, 'worker')} where there were {self._size}"

    def _show_failure(self, run: Run, failure: Failure) -> None:
        """The last that the failing rank printed, its traceback included."""
        self._read_tail(final=True)
        self.say(f"rank {failure.rank} failed: {failure.message}")
        if failure.rank != 0 and self._verbosity >= 1:
            tail = LogTail(self._layout.log(run.attempt, failure.rank), self._prefix(failure.rank))
            self._tell(lambda: tail.pass_on(self._sink(), final=True, at_most=LAST_LINES))

    def _show_unranked(self, record: CheckpointRecord, attribute: str | None) -> None:
        """A name with a mistake in it would let all checkpoints go but the newest, without a word."""
        if attribute is None or self._is_unranked_told or record.status == "PENDING_VALIDATION":
            return
        metrics = unplain(msgspec.json.decode(record.metrics))
        if isinstance(looked_up(metrics, attribute), int | float):
            return
        self._is_unranked_told = True
        names = [words.harmless(name) for name in flat(metrics)][:12]
        self.say(
            f"{record.name} ranks last: checkpoint_score_attribute={attribute!r} is no number among its metrics, which "
            f"are {', '.join(names) or 'none'}",
            error=True,
        )

    def _read_tail(self, final: bool = False) -> None:
        tail = self._tail
        if tail is not None:
            self._tell(lambda: tail.pass_on(self._sink(), final))

    def _tell(self, act: Callable[[], None]) -> None:
        """Where nobody hears it any more, the run goes on in silence."""
        if self._is_gone:
            return
        try:
            act()
        except OSError as problem:
            self._is_gone = True
            log.warning("nothing more is said of run %s: %s", self._layout.root.name, problem)

    # What a terminal of many runs does in its own way.

    def _say_again(self, text: str) -> None:
        """Workers are started again, in this way."""
        self.say(text)

    def _prefix(self, rank: int) -> str:
        return f"[rank {rank}] "

    def _sink(self) -> Sink:
        return sys.stdout


class LogTail:
    """Passes on the lines that are added to a log file."""

    def __init__(self, path: Path, prefix: str) -> None:
        self._path = path
        self._prefix = prefix
        self._position = 0
        self._partial = b""

    def pass_on(self, out: Sink, final: bool = False, at_most: int | None = None) -> None:
        try:
            if os.stat(self._path).st_size > self._position:
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
            # Of a progress bar, which goes back to the start of its line, only the last state is shown.
            shown = (line.rsplit(b"\r", 1)[-1].decode("utf-8", "replace") for line in lines)
            out.write("".join(f"{self._prefix}{line}\n" for line in shown))
            out.flush()


def _waiting(pending: Pending, running: Running, size: int, now: float) -> str:
    behind = [rank for rank in range(size) if running.progress[rank] < pending.seq]
    if not behind:
        return f"report {pending.seq} has waited {now - pending.since:.0f} s for its files to be stored"
    counts = ", ".join(f"rank {rank} has made {running.progress[rank]}" for rank in behind[:4])
    more = f" and {len(behind) - 4} more" if len(behind) > 4 else ""
    return (
        f"rank {pending.rank} has waited {now - pending.since:.0f} s in report {pending.seq} with a checkpoint, "
        f"called at {pending.where}: {counts}{more}. Every rank has to call report() equally often"
    )


def _ranks(ranks: tuple[int, ...]) -> str:
    named = ", ".join(map(str, ranks))
    return f"rank {named}" if len(ranks) == 1 else f"ranks {named}"
