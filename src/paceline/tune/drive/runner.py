"""One life of a trial: its run, driven by a thread of its own, which tells the search what happens in it.

The thread decides nothing. What the search decides comes back through `proceed` and `stop`, which may be called at any
time and from any thread.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Literal

import msgspec

from paceline._control.controller import Controller
from paceline._control.events import CheckpointRecord, CommitFailed, Committed, PinsSet, StagingFailed
from paceline._control.events import Event as RunEvent
from paceline._control.gathering import Gathering, Report, reduced_metrics, reports_of, that_count
from paceline._control.policy import first_failure
from paceline._control.recover import Recovered
from paceline._control.run import Finished, Run, Running
from paceline._core.errors import PreemptionError, TrainingFailedError
from paceline.train.drive import OtherPurposeError, Seams
from paceline.train.result import Result

Ending = Literal["returned", "failed", "interrupted", "preempted", "not its own"]
"""The last: in the place of its run there is one for something else."""


class _NotBegun(Exception):
    """The run was asked to stop before any worker of it was started."""


class FailedBefore(TrainingFailedError):
    """The run had failed under a driver that was lost before it could tell."""


@dataclass(frozen=True)
class ReportTold:
    trial_id: str
    run: str
    attempt: int
    seq: int
    metrics: msgspec.Raw
    at: float


@dataclass(frozen=True)
class SaveTold:
    trial_id: str
    run: str
    seq: int
    name: str
    at: float


@dataclass(frozen=True)
class EndTold:
    trial_id: str
    run: str
    ending: Ending
    error: BaseException | None
    at: float


@dataclass(frozen=True)
class PinsTold:
    """Which of its checkpoints a run keeps for others from now on."""

    trial_id: str
    run: str
    seqs: tuple[int, ...]


Told = ReportTold | SaveTold | PinsTold | EndTold


class TrialRun:
    """`play` drives the run to its end, acting through the seams that it is given."""

    def __init__(
        self,
        trial_id: str,
        run: str,
        play: Callable[[Seams], Result],
        tell: Callable[[Told], None],
        *,
        seen: int,
        waits_in_reports: bool,
        waits_for_checkpoints: bool,
        is_retried: bool = False,
    ) -> None:
        """`seen` is the number of the last report that the search knows of. `waits_in_reports`: nothing is done after a
        report before it is decided upon, also after one that was found. `is_retried`: if the run has failed, that is
        known, and it is to be continued."""
        self.trial_id = trial_id
        self.run = run
        self.is_stopped_by_person = False
        self._play = play
        self._tell = tell
        self._teller = _Teller(trial_id, run, tell, seen, waits_for_checkpoints, is_retried)
        self._waits = waits_in_reports
        # Protects the four below: a stop may be asked for before there is a controller.
        self._changed = threading.Condition()
        self._controller: Controller | None = None
        self._asked: list[Callable[[Controller], None]] = []
        self._passed = 0
        self._is_stopped = False
        self._thread = threading.Thread(target=self._drive, name=f"paceline-{run}", daemon=True)

    def start(self, seams: Seams) -> None:
        self._seams = replace(
            seams,
            watchers=(*seams.watchers, lambda stop: self._teller),
            interrupts=lambda controller: _Attached(self, controller),
            found=self._found,
        )
        self._thread.start()

    def proceed(self, attempt: int, seq: int) -> None:
        with self._changed:
            self._passed = max(self._passed, seq)
            self._changed.notify_all()
        self._ask(lambda controller: controller.let_proceed(attempt, seq))

    def stop(self, *, now: bool = False) -> None:
        self._halt()
        self._ask(lambda controller: controller.request_stop(now=now))

    def preempt(self, grace_s: float) -> None:
        self._halt()
        self._ask(lambda controller: controller.request_preemption(grace_s))

    def pin(self, seqs: tuple[int, ...]) -> None:
        """Have the run keep these checkpoints; what it has of them is told by `PinsTold`, unless it ends before."""
        self._ask(lambda controller: controller.request_pins(seqs))

    def join(self) -> None:
        self._thread.join()

    def attach(self, controller: Controller | None) -> None:
        with self._changed:
            self._controller = controller
            asked, self._asked = self._asked, []
        if controller is not None:
            for ask in asked:
                ask(controller)

    def _halt(self) -> None:
        with self._changed:
            self._is_stopped = True
            self._changed.notify_all()

    def _found(self, found: Recovered) -> None:
        """Tell what is there already, and wait for what is decided about it: no worker is started in vain."""
        last = self._teller.found(found)
        with self._changed:
            if self._waits and last:
                self._changed.wait_for(lambda: self._passed >= last or self._is_stopped)
            if self._is_stopped:
                raise _NotBegun

    def _ask(self, ask: Callable[[Controller], None]) -> None:
        with self._changed:
            controller = self._controller
            if controller is None:
                self._asked.append(ask)
                return
        ask(controller)

    def _drive(self) -> None:
        ending: Ending = "failed"
        error: BaseException | None = None
        try:
            self._play(self._seams)
            ending = "interrupted" if self._teller.was_interrupted else "returned"
        except _NotBegun:
            ending = "interrupted"
        except PreemptionError as problem:
            ending, error = "preempted", problem
        except OtherPurposeError as problem:
            ending, error = "not its own", problem
        except BaseException as problem:  # noqa: BLE001  told to the search, which goes on without this trial
            error = problem
        finally:
            self._teller.rest()
            self._tell(EndTold(self.trial_id, self.run, ending, error, time.time()))


class _Attached:
    """Lets the search ask a controller for as long as it drives."""

    count = 0

    def __init__(self, run: TrialRun, controller: Controller) -> None:
        self._run = run
        self._controller = controller

    def __enter__(self) -> None:
        self._run.attach(self._controller)

    def __exit__(self, *_: object) -> None:
        self._run.attach(None)

    def asked(self, *, now: bool) -> None:
        """Of this trial alone; the search goes on."""
        self._run.is_stopped_by_person = True
        self._controller.request_stop(now=now)


class _Teller:
    """An observer of the run. It may hold a report back until the checkpoint that came with it is committed."""

    def __init__(
        self,
        trial_id: str,
        run: str,
        tell: Callable[[Told], None],
        seen: int,
        waits_for_checkpoints: bool,
        is_retried: bool,
    ) -> None:
        self.was_interrupted = False
        self._trial_id = trial_id
        self._run = run
        self._tell = tell
        self._seen = seen
        self._waits = waits_for_checkpoints
        self._is_retried = is_retried
        self._gathering = Gathering()
        self._held: deque[Report] = deque()

    def found(self, found: Recovered) -> int:
        """Tell what an earlier driver may not have come to tell; the number of the last report that was told so, or 0.

        In the order in which it would have been told then.
        """
        last, latest, told = found.reported, found.run.latest, 0
        for report in that_count(reports_of(found.reports_of_first())):
            if report.seq <= self._seen:
                continue
            if self._waits and latest is not None and told < latest.seq <= report.seq:
                self._saved(latest)
            told = report.seq
            self._pass_on(last if last is not None and last.seq == report.seq else report)
        if latest is not None:
            self._saved(latest)
        phase = found.run.phase
        if isinstance(phase, Finished) and phase.ending == "failed" and not self._is_retried:
            raise FailedBefore(first_failure(phase.failures).message if phase.failures else phase.reason)
        return told

    def _saved(self, record: CheckpointRecord) -> None:
        self._tell(SaveTold(self._trial_id, self._run, record.seq, record.name, time.time()))

    def saw(self, event: RunEvent, run: Run) -> None:
        match event:
            case Committed(record=record):
                self._saved(record)
                self._let_go(record.seq)
            case PinsSet():
                self._tell(PinsTold(self._trial_id, self._run, tuple(run.pinned)))
            case CommitFailed(seq=seq) | StagingFailed(seq=seq):
                self._let_go(seq)
        for report in self._gathering.hear(event, run):
            self._held.append(report)
            if not (self._waits and report.made[0].checkpoint is not None and isinstance(run.phase, Running)):
                self._let_go(report.seq)
        if isinstance(run.phase, Finished):
            self.was_interrupted = run.phase.ending == "interrupted"
            self.rest()
        elif not isinstance(run.phase, Running):
            self.rest()

    def tick(self, run: Run, now: float) -> None:
        """Nothing is told by the clock."""

    def rest(self) -> None:
        while self._held:
            self._pass_on(self._held.popleft())

    def _let_go(self, seq: int) -> None:
        while self._held and self._held[0].seq <= seq:
            self._pass_on(self._held.popleft())

    def _pass_on(self, report: Report) -> None:
        first = report.made[0]
        metrics = reduced_metrics(report.made) if first.reduce else first.metrics
        self._tell(ReportTold(self._trial_id, self._run, report.attempt, report.seq, metrics, report.at))


def error_line(error: BaseException | None) -> str:
    """What a trial failed with, in one line."""
    if error is None:
        return "failed"
    if isinstance(error, FailedBefore):
        return str(error).partition("\n")[0]
    cause: Any = error.__cause__ if error.__cause__ is not None else error
    text = str(cause).strip().splitlines()
    return f"{type(cause).__name__}: {text[0]}" if text else type(cause).__name__
