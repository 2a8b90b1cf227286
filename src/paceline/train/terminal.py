"""What a person sees of a run: a line for each thing that happened, and the output of rank 0.

Ours goes to standard error, with `paceline:` before it; what rank 0 prints goes to standard output, with its rank
before it. Everything that every rank printed is in the log files.
"""

from __future__ import annotations

import os
import sys
import time
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
    StagingFailed,
    StopRequested,
    ValidationEnded,
    WorkerFailed,
    WorkersStopped,
)
from paceline._control.gathering import Gathering
from paceline._control.policy import first_failure
from paceline._control.run import Finished, Pending, Restoring, Run, Running, Stopping, Validating, Waiting
from paceline._core.plain import unplain
from paceline._storage.layout import Layout

LAST_LINES = 40
"""Of a failing rank's output, what is shown; all of it is in its log."""


class Sink(Protocol):
    """What the output of workers is passed on to."""

    def write(self, text: str, /) -> object: ...
    def flush(self) -> None: ...


class Terminal:
    """An observer that prints. `verbosity` as in `Settings`."""

    def __init__(self, layout: Layout, verbosity: int, notice_s: float, out: TextIO | None = None) -> None:
        self._layout = layout
        self._verbosity = verbosity
        self._notice_s = notice_s
        self._out = out if out is not None else sys.stderr
        self._tail: LogTail | None = None
        self._attempt = self._size = 0
        self._failed = 0
        self._began = time.monotonic()
        self._noticed: set[tuple[int, int]] = set()
        self._gathering = Gathering()

    def say(self, text: str, *, error: bool = False) -> None:
        if self._verbosity >= 1 or error:
            print(f"paceline: {text}", file=self._out, flush=True)

    def saw(self, event: Event, run: Run) -> None:
        if isinstance(run.phase, Running) and run.attempt > self._attempt:
            self._attempt_began(run)
        if self._verbosity >= 2:
            for report in self._gathering.hear(event, run):
                self.say(f"report {report.seq}: {_values(report.metrics)}")
        match event:
            case Committed(record=record) if self._verbosity >= 2:
                self.say(f"{record.name} committed ({_size(record.num_bytes)})")
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
                    self.say(f"{name} is validated: {_values(unplain(msgspec.json.decode(metrics)))}")
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
                self.say(f"waiting for room: {counted(run.sizes[0], 'worker')} are needed, {num_places} fit")
        if isinstance(run.phase, Validating) and isinstance(event, WorkersStopped | Committed | CommitFailed):
            self.say(f"the training is over; {counted(len(run.unvalidated), 'validation')} still to be made")
        if isinstance(run.phase, Finished | Restoring | Stopping | Validating):
            self._read_tail()

    def tick(self, run: Run, now: float) -> None:
        self._read_tail()
        if isinstance(run.phase, Running):
            for pending in run.phase.pending:
                key = (run.attempt, pending.seq)
                if now - pending.since > self._notice_s and key not in self._noticed:
                    self._noticed.add(key)
                    self.say(_waiting(pending, run.phase, run.size, now))

    def close(self) -> None:
        self._read_tail(final=True)

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
        return f", with {counted(run.size, 'worker')} where there were {self._size}"

    def _show_failure(self, run: Run, failure: Failure) -> None:
        """The last that the failing rank printed, its traceback included."""
        self._read_tail(final=True)
        self.say(f"rank {failure.rank} failed: {failure.message}")
        if failure.rank != 0 and self._verbosity >= 1:
            tail = LogTail(self._layout.log(run.attempt, failure.rank), self._prefix(failure.rank))
            tail.pass_on(self._sink(), final=True, at_most=LAST_LINES)

    def _read_tail(self, final: bool = False) -> None:
        if self._tail is not None:
            self._tail.pass_on(self._sink(), final)

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


def _values(values: dict[str, Any]) -> str:
    return ", ".join(f"{name}={_short(value)}" for name, value in values.items())


def _short(value: object) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _ranks(ranks: tuple[int, ...]) -> str:
    named = ", ".join(map(str, ranks))
    return f"rank {named}" if len(ranks) == 1 else f"ranks {named}"


def _size(num_bytes: int) -> str:
    for unit in ("B", "KB", "MB"):
        if num_bytes < 1000:
            return f"{num_bytes:.0f} {unit}"
        num_bytes //= 1000
    return f"{num_bytes} GB"


def counted(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
