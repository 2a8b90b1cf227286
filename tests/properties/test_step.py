"""`step` against a late and disorderly engine and storage, and an independent model of what they sent.

`Workers` are processes: what they send lies on a wire, one for each rank, until it arrives. `Model` gets the same
events as `step` and computes, from lists and sets, which commands are due and where the run must stand. `RunMachine`
lets Hypothesis choose what happens next: messages of ranks, storage, validator and user overtake each other, machines
are lost with and without a notice, room for workers comes and goes, and the driver may be lost.
"""

import json
from collections import deque
from collections.abc import Iterator, Sequence
from typing import NamedTuple, TypeVar

import msgspec
import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from paceline._control import events
from paceline._control.commands import (
    Broadcast,
    Command,
    CommitCheckpoint,
    DeleteCheckpoint,
    StartValidation,
    StartWorkers,
    StopWorkers,
    StopWorkersAt,
    VerifyCheckpoint,
)
from paceline._control.events import (
    CapacityChanged,
    CheckpointBroken,
    CheckpointsFound,
    CheckpointVerified,
    CommitFailed,
    Committed,
    DeadlinePassed,
    DriverStarted,
    Event,
    HangSuspected,
    PinsSet,
    ResizeDue,
    Retention,
    StopRequested,
    ValidationEnded,
    WorkersStopped,
)
from paceline._control.retry_policy import MAX_ENGINE_FAILURES_WITHOUT_REPORT
from paceline._control.run import (
    BackingOff,
    Finished,
    Preemption,
    Restoring,
    Run,
    Running,
    Stopping,
    Unopened,
    Validating,
    Waiting,
)
from paceline._control.step import (
    DRAIN_GRACE_S,
    EXIT_DELAY_NOTICE_S,
    SAVE_TIME_FACTOR,
    SECONDARY_FAILURE_GRACE_S,
    STOP_GRACE_S,
    next_deadline,
    next_resize,
    step,
)
from paceline._core.checkpoint_records import CheckpointRecord, FileEntry, StagedFiles, ValidationTask
from paceline._engine.messages import (
    CheckpointCommitted,
    CheckpointRefused,
    CheckpointsRemoved,
    CheckpointStaged,
    CheckpointValidated,
    FailureKind,
    Hold,
    PreemptionNoticeReceived,
    Reported,
    StagingFailed,
    WorkerFailed,
    WorkerFailure,
    WorkerHeld,
    WorkerReady,
    WorkerReturned,
)
from paceline._storage.commit import select_kept

T = TypeVar("T")

PHASES = {
    kind.__name__.lower(): kind
    for kind in (Unopened, BackingOff, Restoring, Waiting, Running, Stopping, Validating, Finished)
}
UNVERIFIED = ("backingoff", "restoring")
"""Where the newest checkpoint may turn out to be broken."""

SCORES = ["0", "1", "-2.5", '{"$number":"nan"}', '"good"']
"""As they are written; what counts for more is up to `properties/test_retention.py`."""


def merge(reported: msgspec.Raw, validated: msgspec.Raw) -> msgspec.Raw:
    both = {**json.loads(bytes(reported)), **json.loads(bytes(validated))}
    return msgspec.Raw(json.dumps(both, separators=(",", ":")).encode())


def is_same(one: CheckpointRecord | None, other: CheckpointRecord) -> bool:
    """One checkpoint, whatever has been found out about it since."""
    return one is not None and (one.seq, one.attempt) == (other.seq, other.attempt)


BUDGETS = {
    "failures": "max_failures",
    "preemptions": "max_preemption_failures",
    "engine failures": "controller_failure_limit",
}


# The model


class Mismatch(NamedTuple):
    """A checkpoint that waits for ranks that have returned without its report; or ranks that reported more often."""

    announced: list[Reported] | list[WorkerReturned]
    short: list[WorkerReturned]


class Life:
    """What the driver knows of one attempt."""

    def __init__(self, attempt: int, size: int, resume: CheckpointRecord | None, began: float) -> None:
        self.attempt = attempt
        self.size = size
        self.began = began
        self.first = resume.seq if resume else 0
        self.num_ready = 0
        self.reports: list[list[Reported]] = [[] for _ in range(size)]
        self.parts: dict[tuple[int, int], StagedFiles] = {}
        self.requested: list[int] = []
        self.refused: set[int] = set()
        self.unanswered: set[int] = set()
        self.returned: dict[int, WorkerReturned] = {}
        self.limits: list[float] = []
        """Moments after which nobody is waited for any more."""
        self.ends: dict[int, int] = {}
        """The last report of each rank that has ended which a checkpoint could still be made of."""
        self.is_draining = False
        """The attempt has failed, and the others may come to where those that ended were."""
        self.fail_by: float | None = None
        self.lost: list[tuple[int, WorkerFailure]] = []
        """Checkpoints that a rank took with it, which nobody has been told yet."""
        self.notices: list[tuple[PreemptionNoticeReceived, float]] = []
        """And when each arrived."""
        self.announced_at: dict[int, float] = {}
        self.long_enough = False
        """That workers are left alone; more of them may join."""
        self.asks = False
        self.hold = False
        self.holds: dict[int, int] = {}
        self.num_looks: dict[int, int] = {}
        """How often ranks had looked for a notice since their last report when they held."""
        self.stop_at: int | None = None
        self.ending: str | None = None
        self.failures: list[WorkerFailure | Mismatch] = []
        self.stopped = False
        self.exit_by: float | None = None
        """Until when the workers are left to exit by themselves."""

    def count(self, rank: int) -> int:
        return self.first + len(self.reports[rank])

    def announced(self, seq: int) -> list[Reported]:
        reports = [each[seq - self.first - 1] for each in self.reports if self.first + len(each) >= seq]
        return [report for report in reports if report.checkpoint is not None]

    def last_whole(self) -> int:
        """The last report that every rank has made or can make."""
        return min(self.ends.values())

    def is_drained(self) -> bool:
        last = self.last_whole()
        return all(self.count(rank) >= last for rank in range(self.size)) and all(s > last for s in self.waiting())

    def preemption(self) -> Preemption | None:
        """All notices in one, as code that looks for it is told."""
        if not self.notices:
            return None
        ranks = {rank for notice, _ in self.notices for rank in notice.ranks}
        ends = min(received_at + notice.grace_s for notice, received_at in self.notices)
        return Preemption(
            tuple(sorted(ranks)), ends, includes_driver=any(notice.includes_driver for notice, _ in self.notices)
        )

    def waiting(self) -> list[int]:
        """The announced checkpoints that are not asked for yet."""
        seqs = {report.seq for reports in self.reports for report in reports if report.checkpoint is not None}
        return sorted(seqs - set(self.requested) - self.refused)

    def due(self) -> Iterator[CommitCheckpoint]:
        for seq in self.waiting():
            announced = self.announced(seq)
            all_reported = all(self.count(rank) >= seq for rank in range(self.size))
            if not all_reported or not all((seq, report.rank) in self.parts for report in announced):
                return
            parts = tuple(self.parts[seq, rank] for rank in range(self.size) if (seq, rank) in self.parts)
            metrics = self.reports[0][seq - self.first - 1].metrics
            size = sum(file.size for part in parts for file in part.files)
            asked = [report.validation for report in announced if report.validation is not None]
            task, status = (asked[0], "PENDING_VALIDATION") if asked else (None, "COMMITTED")
            name = str(announced[0].checkpoint)
            yield CommitCheckpoint(CheckpointRecord(seq, name, self.attempt, metrics, size, task, status), parts)

    def mismatch(self) -> Mismatch | None:
        for seq in self.waiting():
            short = [r for r in self.returned.values() if not r.stopped and r.num_reports < seq]
            if short:
                return Mismatch(self.announced(seq), short)
        return None

    def early_return(self) -> WorkerReturned | None:
        """The rank whose return broke the others, if all that is known are connections that broke."""
        early = [returned for returned in self.returned.values() if not returned.stopped]
        echoes = [f for f in self.failures if isinstance(f, WorkerFailure) and f.collateral and f.kind == "user"]
        if not early or not echoes or len(echoes) < len(self.failures):
            return None
        return min(early, key=lambda returned: returned.num_reports)

    def cause(self) -> WorkerFailure | None:
        """The first failure in time that is no echo; None for a mismatch."""
        own = [failure for failure in self.failures if isinstance(failure, WorkerFailure)]
        if len(own) < len(self.failures):
            return None
        if (early := self.early_return()) is not None:
            return WorkerFailure(early.rank, "mismatch", "")
        causes = [failure for failure in own if not failure.collateral] or own
        return min(causes, key=lambda failure: (failure.at, failure.rank))


class Model:
    """The run as it must be after the events so far, in lists and sets."""

    def __init__(self) -> None:
        self.stage = "unopened"
        self.attempt = 0
        self.driver = DriverStarted(1, 0)
        self.now = 0.0
        self.places: int | None = None
        self.spent = dict.fromkeys(BUDGETS, 0)
        self.engine_failures_since_a_report = 0
        self.last_failure: tuple[int, str] | None = None
        """After how many reports of its rank the last failure came, if it was an exception, and its text."""
        self.furthest = 0
        """The last report of rank 0 that an attempt of this driver which failed had come to."""
        self.in_vain = 0
        """How many attempts in a row have failed without coming further."""
        self.retry_at = 0.0
        self.stop_requested = False
        self.driver_is_preempted = False
        self.last_save_s: float | None = None
        self.checkpoints: list[CheckpointRecord] = []
        self.pins: list[CheckpointRecord] = []
        """Kept, and others begin from them: whatever is found out about one, it is the same checkpoint."""
        self.validating: CheckpointRecord | None = None
        self.life = Life(0, 0, None, 0.0)
        self.ending: str | None = None
        self.reason = ""

    def apply(self, event: Event, now: float) -> list[Command]:
        """Take an event in, and return what must be asked for because of it."""
        self.now = now
        if isinstance(event, DriverStarted):
            return self._driver_started(event)
        if isinstance(event, CheckpointsFound):
            return self._add_found(event)
        if isinstance(event, ValidationEnded):
            return self._validated(event)
        if isinstance(event, PinsSet):
            return self._pinned(event)
        if event.attempt < self.attempt or self.stage == "finished":
            return []
        if self.stage == "validating":
            return self._after_the_training(event)
        if isinstance(event, CapacityChanged):
            self.places = event.num_places
        if self.stage in ("backingoff", "restoring", "waiting"):
            return self._without_workers(event)
        commands = self._while_workers_live(event, now)
        for commit in list(self.life.due()):
            self.life.requested.append(commit.record.seq)
            self.life.unanswered.add(commit.record.seq)
            commands.append(commit)
        life, lost = self.life, self.life.lost
        life.lost = []
        if self.stage == "running":
            if life.is_draining and life.is_drained():
                return commands + self._stop("failed")
            commands += [Broadcast(life.attempt, CheckpointRefused(seq, by.message, by.rank)) for seq, by in lost]
            commands += self._agreed() if life.is_draining else []
        if isinstance(event, Committed | CommitFailed | WorkersStopped):
            commands += self._settled()
        return commands

    def _driver_started(self, event: DriverStarted) -> list[Command]:
        complete = self.stage == "finished" and self.ending == "complete"
        if complete and not (self._unvalidated() and event.validates):
            return []
        self.driver = event
        self.pins = [record for record in self.checkpoints if record.seq in event.pinned]
        self.validating = None
        self.stop_requested = self.driver_is_preempted = False
        self.last_save_s = None
        if complete or self.stage == "validating":
            self.stage = "validating"
            return self._validates_next() or self._end("complete")
        self.places = event.num_places
        self.spent = dict.fromkeys(BUDGETS, 0)
        self.engine_failures_since_a_report = 0
        self.last_failure = None
        self.furthest = self.checkpoints[-1].seq if self.checkpoints else 0
        self.in_vain = 0
        return [*self._next_attempt(), *self._validates_next()]

    def _after_the_training(self, event: Event) -> list[Command]:
        if isinstance(event, StopRequested):
            self.stop_requested = True
        elif isinstance(event, PreemptionNoticeReceived) and event.includes_driver:
            self.driver_is_preempted = True
        else:
            return []
        return self._end("complete")

    def _unvalidated(self) -> list[CheckpointRecord]:
        return [record for record in self.checkpoints if record.status == "PENDING_VALIDATION"]

    def is_owed_a_validation(self) -> bool:
        """None is under way though one could be."""
        may = self.driver.validates and self.stage not in ("unopened", "finished")
        return may and self.validating is None and bool(self._unvalidated())

    def _validates_next(self) -> list[Command]:
        if self.validating is not None or not self.driver.validates or not self._unvalidated():
            return []
        self.validating = self._unvalidated()[0]
        return [StartValidation(self.validating)]

    def _validated(self, event: ValidationEnded) -> list[Command]:
        if self.stage == "finished":
            return []
        commands: list[Command] = []
        for at, record in enumerate(self.checkpoints):
            if is_same(self.validating, record):
                after = msgspec.structs.replace(
                    record, status=event.status, metrics=merge(record.metrics, event.metrics)
                )
                there = [*self.checkpoints[:at], after, *self.checkpoints[at + 1 :]]
                # Not while the newest may turn out to be broken.
                self.checkpoints = there if self.stage in UNVERIFIED else self._retained(there)
                gone = [other for other in there if other not in self.checkpoints]
                if self.stage in ("running", "stopping"):
                    removed = tuple(sorted(other.seq for other in gone))
                    commands.append(Broadcast(self.attempt, CheckpointValidated(after, removed)))
                commands += map(DeleteCheckpoint, gone)
                break
        self.validating = None
        commands += self._validates_next()
        if self.stage == "validating" and self.validating is None:
            commands += self._end("complete")
        return commands

    def _pinned(self, event: PinsSet) -> list[Command]:
        if self.stage == "finished":
            return []
        self.pins = [record for record in self.checkpoints if record.seq in event.seqs]
        if self.stage in UNVERIFIED or not self.checkpoints:
            return []
        there, self.checkpoints = self.checkpoints, self._retained(self.checkpoints)
        gone = [record for record in there if record not in self.checkpoints]
        commands: list[Command] = [*map(DeleteCheckpoint, gone)]
        if gone and self.stage in ("running", "stopping"):
            commands.append(Broadcast(self.attempt, CheckpointsRemoved(tuple(sorted(record.seq for record in gone)))))
        return commands

    def is_pinned(self, record: CheckpointRecord) -> bool:
        return any(is_same(pin, record) for pin in self.pins)

    def _add_found(self, event: CheckpointsFound) -> list[Command]:
        seqs = {record.seq for record in self.checkpoints}
        new = [record for record in event.records if record.seq not in seqs]
        names = {record.name for record in new}
        still = [r for r in self.checkpoints if r.name not in names and r.seq not in event.missing]
        if new or len(still) < len(self.checkpoints):
            self.life.unanswered.clear()
        self.checkpoints = sorted(still + new, key=lambda record: record.seq)
        if any(record.attempt > self.attempt for record in new):
            self.attempt = max(record.attempt for record in new)
            self.stage = "unopened"
        return []

    def _without_workers(self, event: Event) -> list[Command]:
        match event:
            case DeadlinePassed() if self.stage == "backingoff":
                return self._begin()
            case CheckpointVerified() if self.stage == "restoring":
                return self._start()
            case CheckpointBroken() if self.stage == "restoring":
                self.checkpoints.pop()
                return self._begin()
            case CapacityChanged():
                return self._start() if self.stage == "waiting" else []
            case StopRequested():
                self.stop_requested = True
                self.life.failures = []
                return self._end("interrupted")
            case PreemptionNoticeReceived(includes_driver=True):
                self.driver_is_preempted = True
                self.life.failures = []
                return self._end("preempted")
            case PreemptionNoticeReceived():
                return []
        raise AssertionError(f"{event} with no workers there, {self.stage}")

    def _while_workers_live(self, event: Event, now: float) -> list[Command]:
        life = self.life
        running = self.stage == "running"
        match event:
            case WorkerReady():
                life.num_ready += running
            case Reported(rank=rank, seq=seq):
                if seq == life.count(rank) + 1:
                    life.reports[rank].append(event)
                    self.engine_failures_since_a_report = 0
                    if event.checkpoint is not None:
                        life.announced_at.setdefault(seq, now)
                    return self._mismatch() if running and not life.is_draining else []
            case CheckpointStaged(seq=seq, staged=staged):
                if seq not in life.requested:
                    life.parts.setdefault((seq, staged.rank), staged)
            case StagingFailed(rank=rank, seq=seq, error=error):
                if seq in life.waiting():
                    life.refused.add(seq)
                    return [Broadcast(life.attempt, CheckpointRefused(seq, error, rank))]
            case Committed(record=record):
                return self._committed(record)
            case CommitFailed(seq=seq, error=error):
                life.unanswered.discard(seq)
                return [Broadcast(life.attempt, CheckpointRefused(seq, error))]
            case WorkerReturned() if running:
                return self._returned(event, now)
            case WorkerFailed(failure=failure):
                return self._failed(failure, now)
            case StopRequested(now=at_once):
                return self._stop_requested(at_once)
            case PreemptionNoticeReceived():
                return self._preempted(event)
            case ResizeDue() if running:
                life.long_enough = True
            case WorkerHeld(rank=rank, seq=seq, asks=asks, num_checks=num_checks) if running:
                life.holds[rank], life.num_looks[rank] = seq, num_checks
                life.asks |= asks
                return self._agreed()
            case HangSuspected(failure=failure) if running and not life.is_draining:
                return self._failed(failure, now)
            case DeadlinePassed() if running and life.failures and not life.is_draining:
                self._drain(now)
            case DeadlinePassed() if running:
                return self._stop("failed" if life.failures else self._asked_to())
            case DeadlinePassed() if life.exit_by is not None and not life.stopped:
                life.exit_by = None
                return [StopWorkers(life.attempt, kill=True)]
            case WorkersStopped():
                if running:
                    self._stop("failed")
                life.stopped = True
        return []

    def _failed(self, failure: WorkerFailure, now: float) -> list[Command]:
        life = self.life
        if self.stage == "running" or life.ending == "failed":
            life.failures.append(failure)
        if self.stage != "running":
            return []
        rank, last = failure.rank, life.count(failure.rank)
        if not failure.traceback and failure.kind != "hang":  # The process is gone, and what it had not stored.
            unstored = [s for s in life.waiting() if (s, rank) not in life.parts]
            own = [s for s in unstored if any(report.rank == rank for report in life.announced(s))]
            life.lost = [(seq, failure) for seq in own]
            life.refused.update(own)
            last -= last in own
        life.ends[rank] = min(last, life.ends.get(rank, last))
        if not failure.collateral or life.is_draining or set(life.ends) == set(range(life.size)):
            self._drain(now)
        elif life.fail_by is None:  # An echo: the death behind it is waited for, not for long.
            life.fail_by = now + SECONDARY_FAILURE_GRACE_S
        return []

    def _drain(self, now: float) -> None:
        life = self.life
        if not life.is_draining:  # Ranks that hang are not waited for.
            hangs = any(isinstance(failure, WorkerFailure) and failure.kind == "hang" for failure in life.failures)
            life.is_draining, life.fail_by = True, now + (0 if hangs else DRAIN_GRACE_S)

    def _preempted(self, notice: PreemptionNoticeReceived) -> list[Command]:
        life = self.life
        self.driver_is_preempted |= notice.includes_driver
        if self.stage != "running":
            return []
        life.notices.append((notice, self.now))
        life.limits.append(self.now + notice.grace_s)
        if life.hold or life.is_draining:
            return []
        life.hold = True
        return [Broadcast(life.attempt, Hold())]

    def _asked_to(self) -> str:
        """How workers end that were asked to."""
        return "preempted" if self.life.notices else "interrupted"

    def _mismatch(self) -> list[Command]:
        mismatch = self.life.mismatch()
        if mismatch is None:
            return []
        self.life.failures.append(mismatch)
        return self._stop("failed")

    def _returned(self, event: WorkerReturned, now: float) -> list[Command]:
        life = self.life
        life.returned[event.rank] = event
        if event.stopped and not life.limits:
            life.limits.append(now + STOP_GRACE_S)
        life.ends[event.rank] = min(life.count(event.rank), life.ends.get(event.rank, event.num_reports))
        if life.is_draining:
            return []
        if commands := self._mismatch():
            return commands
        if len(life.returned) == life.size:
            asked_to = any(returned.stopped for returned in life.returned.values())
            counts = {returned.num_reports for returned in life.returned.values()}
            if len(counts) > 1 and not asked_to:
                least, most = ([r for r in life.returned.values() if r.num_reports == n(counts)] for n in (min, max))
                life.failures.append(Mismatch(most, least))
                return self._stop("failed", kill=False)
            return self._stop(self._asked_to() if asked_to else "complete", kill=False)
        return self._agreed()

    def _stop_requested(self, at_once: bool) -> list[Command]:
        life = self.life
        self.stop_requested = True
        if self.stage == "running":
            if at_once:
                if life.is_draining:
                    return self._stop("failed")
                life.failures.clear()
                return self._stop(self._asked_to())
            if not life.hold and not life.is_draining:
                life.hold = True
                return [Broadcast(life.attempt, Hold())]
        elif at_once and not life.stopped:
            return [StopWorkers(life.attempt, kill=True)]
        return []

    def _agreed(self) -> list[Command]:
        life = self.life
        at_work = set(range(life.size)) - set(life.ends)
        if not life.hold or life.stop_at is not None or not at_work or not at_work <= set(life.holds):
            return []
        notice = life.preemption()
        life.stop_at = 1 + max(life.holds[rank] for rank in at_work)
        if life.failures:
            life.stop_at = max(life.stop_at, 1 + life.last_whole())
        if notice is None:
            return [StopWorkersAt(life.attempt, life.stop_at)]
        in_time = self.last_save_s is None or self.now + SAVE_TIME_FACTOR * self.last_save_s < notice.deadline
        if not life.asks:
            return [StopWorkersAt(life.attempt, life.stop_at, in_time, notice)]
        ahead = [life.num_looks[rank] for rank in at_work if life.holds[rank] == life.stop_at - 1]
        life.stop_at += 1  # All see the notice from one look on, and none before it.
        return [StopWorkersAt(life.attempt, life.stop_at, in_time, notice, max(ahead, default=0))]

    def _stop(self, ending: str, *, kill: bool = True) -> list[Command]:
        self.stage, self.life.ending = "stopping", ending
        self.life.exit_by = None if kill else self.now + self.driver.exit_grace_s + EXIT_DELAY_NOTICE_S
        return [StopWorkers(self.life.attempt, kill)]

    def _committed(self, record: CheckpointRecord) -> list[Command]:
        life = self.life
        life.unanswered.discard(record.seq)
        if record.seq in life.announced_at:
            self.last_save_s = self.now - life.announced_at[record.seq]
        replaced = [other for other in self.checkpoints if other.name == record.name]
        there = [other for other in self.checkpoints if other.name != record.name] + [record]
        self.checkpoints = self._retained(there)
        gone = [other for other in there if other not in self.checkpoints]
        removed = tuple(sorted(other.seq for other in replaced + gone))
        commands: list[Command] = [
            Broadcast(record.attempt, CheckpointCommitted(record, removed)),
            *map(DeleteCheckpoint, gone),
        ]
        commands += self._validates_next()
        undisturbed = self.stage == "running" and not (life.hold or life.failures or life.returned)
        if undisturbed and life.long_enough and self._has_room():
            commands += self._stop("resized")
        return commands

    def _retained(self, records: list[CheckpointRecord]) -> list[CheckpointRecord]:
        rules, pins = self.driver.retention, {record.seq for record in records if self.is_pinned(record)}
        return list(select_kept(records, rules.num_to_keep, rules.score_attribute, rules.score_order, pins))

    def _settled(self) -> list[Command]:
        life = self.life
        if self.stage != "stopping" or not life.stopped or life.unanswered:
            return []
        assert life.ending is not None
        ending = "preempted" if life.ending == "failed" and self._was_preempted() else life.ending
        if self.stop_requested or self.driver_is_preempted:
            if ending == "resized":
                ending = "preempted" if self.driver_is_preempted else "interrupted"
            return self._end(ending)
        if ending == "resized":
            return self._next_attempt()
        if ending == "preempted":
            if self._has_lost_places() or self._spend("preemptions"):
                return self._next_attempt()
        elif ending == "failed":
            places, spent = self._has_lost_places(), dict(self.spent)
            if reason := self._reason_to_give_up():
                return self._end(ending, reason)
            if self.spent == spent:
                assert places, "nobody pays for the attempt"
            elif self.in_vain > 1:
                self.attempt += 1
                self.stage = "backingoff"
                self.retry_at = max(self.now, life.began + min(30.0, 0.25 * 2 ** (self.in_vain - 1)))
                return []
            return self._next_attempt()
        elif self.validating is not None and ending == "complete":
            self.stage = "validating"
            return []
        return self._end(ending)

    def _was_preempted(self) -> bool:
        """A worker ended not of itself, where it was known that its machine goes."""
        cause = self.life.cause()
        if cause is None or cause.kind not in ("killed", "preempted", "exited"):
            return False
        return self.driver_is_preempted or any(cause.rank in notice.ranks for notice, _ in self.life.notices)

    def _has_lost_places(self) -> bool:
        return self.places is not None and self.places < self.life.size

    def _reason_to_give_up(self) -> str:
        """Part of the reason why there is no further attempt; nothing where there is one, and then it is paid for."""
        cause = self.life.cause()
        if cause is None or not cause.retriable:
            return "would end the same way"
        failure_key = None
        if cause.kind == "user" and not cause.transient and not cause.collateral:
            text = "".join(character for character in cause.message if not character.isdigit())
            failure_key = (self.life.count(cause.rank), text)
        before, self.last_failure = self.last_failure, failure_key
        saved = any(record.attempt == self.attempt for record in self.checkpoints)
        is_further = saved or self.life.count(0) > self.furthest
        self.furthest = max(self.furthest, self.life.count(0))
        if failure_key is not None and failure_key == before and not is_further:
            return "deterministic"
        self.in_vain = 0 if is_further else self.in_vain
        if cause.kind in ("killed", "exited", "engine", "preempted") and self._has_lost_places():
            return ""
        self.in_vain += not is_further
        if cause.kind == "engine":
            self.engine_failures_since_a_report += 1
            if self.engine_failures_since_a_report == MAX_ENGINE_FAILURES_WITHOUT_REPORT:
                return "without a report in between"
        budget = {"engine": "engine failures", "preempted": "preemptions"}.get(cause.kind, "failures")
        return "" if self._spend(budget) else BUDGETS[budget]

    def _spend(self, budget: str) -> bool:
        limit = getattr(self.driver, BUDGETS[budget])
        if limit == -1 or self.spent[budget] < limit:
            self.spent[budget] += 1
            return True
        return False

    def _end(self, ending: str, reason: str = "") -> list[Command]:
        self.stage, self.ending, self.reason = "finished", ending, reason
        self.last_save_s = None
        return []

    def _next_attempt(self) -> list[Command]:
        self.attempt += 1
        return self._begin()

    def _begin(self) -> list[Command]:
        if not self.checkpoints:
            return self._start()
        self.stage = "restoring"
        return [VerifyCheckpoint(self.attempt, self.checkpoints[-1])]

    def _max_size(self) -> int:
        """How many workers are allowed and have room; 0: too few."""
        allowed = self.driver.sizes or (self.driver.size,)
        return max([0, *(size for size in allowed if self.places is None or size <= self.places)])

    def _has_room(self) -> bool:
        return self._max_size() > self.life.size

    def _start(self) -> list[Command]:
        resume = self.checkpoints[-1] if self.checkpoints else None
        size = self._max_size()
        if size == 0:
            self.stage = "waiting"
            return []
        self.stage = "running"
        self.life = Life(self.attempt, size, resume, self.now)
        return [StartWorkers(self.attempt, size, resume)]

    def check(self, run: Run) -> None:
        """The run is where the model is."""
        life = self.life
        assert isinstance(run.phase, PHASES[self.stage])
        assert run.attempt == self.attempt
        assert run.checkpoints == tuple(self.checkpoints), "the kept checkpoints differ"
        assert len({record.name for record in run.checkpoints}) == len(run.checkpoints), "one name, two records"
        assert list(run.pinned) == [record.seq for record in filter(self.is_pinned, self.checkpoints)]
        assert run.stop_requested == self.stop_requested
        assert run.preempted == self.driver_is_preempted
        assert run.num_places == self.places
        assert run.last_save_s == self.last_save_s
        spent = (run.num_failures, run.num_preemptions, run.num_engine_failures)
        assert spent == tuple(self.spent.values()), "another budget was charged"
        if self.stage != "finished":
            assert run.num_engine_failures_without_report == self.engine_failures_since_a_report
        if isinstance(run.phase, Running | Stopping):
            live = run.phase if isinstance(run.phase, Running) else run.phase.running
            assert run.size == life.size
            assert live.preemption == life.preemption()
            assert set(run.committing) == life.unanswered
            assert run.num_reports == life.count(0)
            assert [live.progress[rank] for rank in range(life.size)] == [*map(life.count, range(life.size))]
            assert [pending.seq for pending in live.pending] == life.waiting()
            assert live.num_ready == life.num_ready
            assert live.stop_at == life.stop_at
        if isinstance(run.phase, Running) and not life.is_draining:
            assert life.mismatch() is None, "a checkpoint is waited for that can never be"
        if isinstance(run.phase, Validating):
            assert run.validating is not None, "nothing is waited for"
        if not isinstance(run.phase, Finished | Unopened):
            under_way = self.validating
            assert run.validating == (None if under_way is None else (under_way.seq, under_way.attempt))
        running = self.stage == "running"
        leaving = self.stage == "stopping" and not life.stopped
        limits = [*life.limits, *([life.fail_by] if life.fail_by is not None else [])]
        due = min(limits, default=None) if running else life.exit_by if leaving else None
        due = self.retry_at if self.stage == "backingoff" else due
        assert next_deadline(run) == due
        may_come_to_grow = running and not life.long_enough and self._has_room()
        assert next_resize(run) == (life.began + self.driver.resize_every_s if may_come_to_grow else None)
        if isinstance(run.phase, Stopping | Finished):
            assert run.phase.ending == (life.ending if self.stage == "stopping" else self.ending)
            self._check_failures(run.phase.failures)
        if isinstance(run.phase, Finished):
            assert not run.committing, "finished with a commit in flight"
            assert self.reason in run.phase.reason
            assert bool(self.reason) == bool(run.phase.reason)
            assert self.ending != "resized", "a run ends because there is room"

    def _check_failures(self, failures: Sequence[WorkerFailure]) -> None:
        if (early := self.life.early_return()) is not None:
            *failures, blamed = failures
            assert (blamed.rank, blamed.kind, blamed.collateral) == (early.rank, "mismatch", False)
            assert early.where in blamed.message
        assert len(failures) == len(self.life.failures)
        for failure, expected in zip(failures, self.life.failures, strict=True):
            if not isinstance(expected, Mismatch):
                assert failure == expected
                continue
            assert failure.kind == "mismatch"
            assert not failure.retriable
            assert any(report.where in failure.message for report in expected.announced)
            assert any(returned.where in failure.message for returned in expected.short)


# The engine


class Workers:
    """The processes of one attempt. What they did is not yet what the driver knows."""

    def __init__(self, command: StartWorkers) -> None:
        self.attempt = command.attempt
        self.ranks = range(command.size)
        first = command.resume.seq if command.resume else 0
        self.counts = [first for _ in self.ranks]
        self.wires: list[deque[Event]] = [deque([WorkerReady(self.attempt, rank, 100 + rank)]) for rank in self.ranks]
        self.uploads: list[deque[CheckpointStaged]] = [deque() for _ in self.ranks]
        self.files: list[list[Event]] = [[] for _ in self.ranks]
        self.at_work = set(self.ranks)
        self.in_sync: dict[int, int] = {}
        self.refused: set[int] = set()
        self.hold = False
        self.holds: dict[int, int] = {}
        self.stop_at: int | None = None
        self.save_at_stop = True
        self.notice: Preemption | None = None
        self.asks: set[int] = set()
        self.looks: dict[tuple[int, int, int], Preemption | None] = {}
        """What ranks that looked for a notice saw, by rank, their number of reports, and that of looks since."""
        self.num_looks = [0 for _ in self.ranks]
        self.looks_in_vain = 0
        self.hung: set[int] = set()
        """Called hung, though they go on."""
        self.is_leaving = self.is_dying = self.gone = False

    def free(self) -> list[int]:
        """The ranks whose function is running, not waiting for a commit or for where to stop."""
        return [
            rank
            for rank in sorted(self.at_work - set(self.in_sync))
            if self.stop_at is not None or self.counts[rank] <= self.holds.get(rank, self.counts[rank])
        ]

    def reporting(self) -> list[int]:
        return [rank for rank in self.free() if self.stop_at is None or self.counts[rank] < self.stop_at]

    def look(self, rank: int) -> None:
        """What `get_preemption_info` does."""
        if rank in self.hung:
            return
        if self.stop_at is None and rank in self.holds:
            return  # It waits to know where to stop.
        self.asks.add(rank)
        self.num_looks[rank] += 1
        at = count, number = self.counts[rank], self.num_looks[rank]
        is_late = self.stop_at is not None and at > (self.stop_at - 2, self.looks_in_vain)
        notice = self.notice if is_late else None
        same = all(other == notice for (_, *when), other in self.looks.items() if tuple(when) == at)
        assert same, f"at look {number} in the step after report {count} ranks see different things"
        self.looks[rank, count, number] = notice

    def receive_notice(self, rank: int, grace_s: float, includes_driver: bool) -> None:
        self.wires[rank].append(PreemptionNoticeReceived(self.attempt, grace_s, (rank,), includes_driver))

    def report(self, rank: int, metrics: msgspec.Raw, mode: str | None, name: str, validates: bool) -> None:
        self.counts[rank] += 1
        self.num_looks[rank] = 0
        seq = self.counts[rank]
        if seq == self.stop_at and not self.save_at_stop:
            mode = None
        checkpoint, task = None if mode is None else name, None
        if mode is not None and mode.endswith("!"):
            task = ValidationTask(msgspec.Raw(b'{"asked by":%d}' % rank)) if validates else None
            mode = mode.removesuffix("!")
        where = f"train.py:{seq} of {rank}"
        self._send(rank, Reported(self.attempt, rank, seq, metrics, 0.0, where, checkpoint, task))
        if seq in self.refused:
            return  # Another rank's files have failed: this one does not store its own, and waits for nothing.
        if mode is not None:
            # A rank may announce a checkpoint that it has no file for.
            files = tuple(FileEntry(f"{rank}-{n}.bin", 10 * seq + n, f"{n}") for n in range((rank + seq) % 3))
            staged = StagedFiles(rank, files, in_place=mode == "in place")
            self.uploads[rank].append(CheckpointStaged(self.attempt, seq, staged))
        if mode == "sync":
            self.in_sync[rank] = seq

    def upload(self, rank: int) -> None:
        self._send(rank, self.uploads[rank].popleft())

    def fail_upload(self, rank: int) -> None:
        """The user's code may catch the error and go on."""
        seq = self.uploads[rank].popleft().seq
        if self.in_sync.get(rank) == seq:
            del self.in_sync[rank]
        self.wires[rank].append(StagingFailed(self.attempt, rank, seq, "OSError: disk full"))

    def answer_hold(self, rank: int) -> None:
        self.holds[rank] = self.counts[rank]
        held = WorkerHeld(self.attempt, rank, self.counts[rank], rank in self.asks, self.num_looks[rank])
        self.wires[rank].append(held)

    def unheld(self) -> list[int]:
        return [rank for rank in sorted(self.at_work) if self.hold and rank not in self.holds]

    def leave(self, rank: int) -> None:
        self.at_work.remove(rank)
        count = self.counts[rank]
        assert self.stop_at is None or count <= self.stop_at, "a rank came past the stop"
        where = f"end.py:{count} of {rank}"
        self.wires[rank].append(
            WorkerReturned(self.attempt, rank, count, where, stopped=count == self.stop_at, pickled=b"\x80object")
        )

    def die(self, rank: int, failure: WorkerFailure) -> None:
        self.at_work.remove(rank)
        self.in_sync.pop(rank, None)
        if not failure.traceback:  # Else it is an exception: its process waits to be ended, and stores meanwhile.
            self.uploads[rank].clear()
        self.wires[rank].append(WorkerFailed(self.attempt, rank, failure, pickled=b"\x80error"))

    def may_be_gone(self) -> bool:
        """Whether `WorkersStopped` is true: all messages have arrived, and no process has a reason to live."""
        if self.gone or any(self.wires):
            return False
        return self.is_dying or (self.is_leaving and not self.at_work and not any(self.uploads))

    def end(self) -> None:
        """Every process is gone, and with it what it had not sent."""
        self.gone = True
        self.at_work.clear()
        self.in_sync.clear()
        for queue in (*self.wires, *self.uploads):
            queue.clear()

    def carry_out(self, command: Command) -> None:
        match command:
            case Broadcast(message=CheckpointCommitted(record=CheckpointRecord(seq=seq)) | CheckpointRefused(seq=seq)):
                if isinstance(command.message, CheckpointRefused):
                    self.refused.add(seq)
                self.in_sync = {rank: waits for rank, waits in self.in_sync.items() if waits != seq}
            case Broadcast(message=Hold()):
                self.hold = True
            case StopWorkersAt(seq=seq):
                assert self.stop_at is None, "two reports to stop at"
                others = self.at_work - self.hung
                assert all(self.counts[rank] <= seq for rank in others), "a rank is already past the stop"
                self.stop_at, self.save_at_stop, self.notice = seq, command.save, command.preemption
                self.looks_in_vain = command.num_checks
                # A rank that has returned by now has no say in where the others stop, and no step with them any more.
                self.looks = {look: notice for look, notice in self.looks.items() if look[0] in others}
            case StopWorkers(kill=kill):
                assert kill or not self.at_work, "workers still at work are waited for"
                self.is_leaving = True
                self.is_dying |= kill

    def _send(self, rank: int, event: Event) -> None:
        """A worker writes to a file of its own what it reports, before it sends it."""
        self.files[rank].append(event)
        self.wires[rank].append(event)


# The machine

modes = st.sampled_from([None, None, "sync", "async", "async", "in place", "sync!", "async!", "async!"])
"""How a checkpoint is reported, if at all; with a `!`, its validation is asked for."""
scores = st.sampled_from(SCORES)
picks = st.integers(0, 5)
places = st.sampled_from([0, 1, 2, 2, 3, 4])
graces = st.sampled_from([0.5, 4.0, 12.0, 30.0])
drivers = st.builds(
    lambda sizes, **about: DriverStarted(sizes[-1], sizes=sizes if len(sizes) > 1 else (), **about),
    st.sampled_from([(1,), (2,), (2,), (3,), (1, 2), (1, 2), (2, 3), (1, 3), (1, 2, 3), (2, 4)]),
    max_failures=st.sampled_from([-1, 0, 1, 1, 2]),
    max_preemption_failures=st.sampled_from([-1, -1, 0, 1]),
    controller_failure_limit=st.sampled_from([-1, -1, 0, 1]),
    resize_every_s=st.sampled_from([0.0, 20.0, 20.0]),
    num_places=st.sampled_from([None, None, None, 1, 2, 3]),
    retention=st.builds(
        Retention,
        num_to_keep=st.sampled_from([None, 1, 2, 3]),
        score_attribute=st.sampled_from([None, "score", "eval/score"]),
        score_order=st.sampled_from(["max", "min"]),
    ),
    validates=st.sampled_from([True, True, True, False]),
    pinned=st.sampled_from([(), (), (1, 2), (3,), tuple(range(1, 9))]),
)
failures = st.builds(
    WorkerFailure,
    rank=st.just(0),
    kind=st.sampled_from(["user", "user", "killed", "exited", "storage", "engine", "engine", "preempted"]),
    message=st.just("RuntimeError: no"),
    at=st.sampled_from([1.0, 2.0, 3.0]),
    collateral=st.booleans(),
    retriable=st.sampled_from([True, True, True, False]),
    transient=st.booleans(),
    traceback=st.sampled_from(["", "Traceback"]),
)


def choose(items: Sequence[T], pick: int) -> T:
    return items[pick % len(items)]


class RunMachine(RuleBasedStateMachine):
    """An engine and a storage thread that answer late, out of order, twice, or with a death."""

    @initialize(
        driver=drivers,
        reuse_names=st.booleans(),
        calm=st.sampled_from([0, 6, 10, 15, 40]),
        slow_storage=st.booleans(),
        lookers=st.sampled_from([set(), {0}, {0, 1}, {1, 2}, {0, 1, 2, 3}]),
    )
    def begin(self, driver: DriverStarted, reuse_names: bool, calm: int, slow_storage: bool, lookers: set[int]) -> None:
        """`calm` is how many events pass between one trouble and the next: some runs must get somewhere."""
        self.slow_storage = slow_storage
        self.lookers = lookers
        """Whose code looks for notices of preemption, in every step."""
        self.reuse_names = reuse_names
        self.calm = calm
        self.calm_until = 0.0
        self.now = 100.0
        self.open(driver)

    def open(self, driver: DriverStarted) -> None:
        self.run = Run()
        self.model = Model()
        self.validator: CheckpointRecord | None = None
        self.journal: list[tuple[bytes, float]] = []
        self.workers = Workers(StartWorkers(0, 1, None))
        self.workers.end()
        self.files: dict[int, list[list[Event]]] = {}
        self.delivered: list[Reported | CheckpointStaged] = []
        self.storage: dict[str, CheckpointRecord] = {}
        self.done: set[tuple[int, int]] = set()
        """Commits, by attempt and number, that have been done: what was staged for them is no longer there."""
        self.work: deque[Command] = deque()
        self.answers: deque[Event] = deque()
        self.promised = 0
        self.send(driver)

    # Sending an event

    def send(self, event: Event) -> None:
        self.intact = False
        self.now += 1
        before = self.run
        commands = self.take(event)
        assert not self.model.is_owed_a_validation(), "a validation is forgotten"
        if self.run is not before or commands:
            self.journal.append((events.encode_event(event), self.now))
        if isinstance(event, Reported | CheckpointStaged):
            self.delivered.append(event)
        for command in commands:
            self.carry_out(command)
        self.intact = True

    def take(self, event: Event) -> list[Command]:
        """Step the run and the model alike, and compare them."""
        before = self.run
        self.run, commands = step(before, event, self.now)
        due = self.model.apply(event, self.now)
        assert is_permutation(commands, due), f"{event}: {due} is due, but {commands} was asked for"
        self.model.check(self.run)
        self.check_latest(before, event)
        asked = [command.record.seq for command in commands if isinstance(command, CommitCheckpoint)]
        assert asked == sorted(asked), "commits are asked for out of order"
        return commands

    def check_latest(self, before: Run, event: Event) -> None:
        if before.latest is None or isinstance(event, CheckpointBroken):
            return
        if isinstance(event, CheckpointsFound) and before.latest.seq in event.missing:
            return
        assert self.run.latest is not None, "the latest checkpoint is forgotten"
        assert self.run.latest.seq >= before.latest.seq, "the latest checkpoint moved backward"

    def carry_out(self, command: Command) -> None:
        match command:
            case StartWorkers(attempt=attempt, resume=resume):
                assert self.workers.gone, "two attempts at once"
                resumed = resume.seq if resume else 0
                assert resumed >= self.promised, "workers know of a checkpoint that is not resumed from"
                self.workers = Workers(command)
                self.files[attempt] = self.workers.files
            case VerifyCheckpoint() | CommitCheckpoint() | DeleteCheckpoint():
                self.work.append(command)
                if isinstance(command, DeleteCheckpoint):
                    assert command.record.seq not in self.run.pinned, "deleted though others begin from it"
                    assert command.record.status != "PENDING_VALIDATION", "deleted before its score is known"
            case StartValidation(record=record):
                assert self.validator is None, "two validations at once"
                self.validator = record
            case _:
                if isinstance(command, Broadcast) and isinstance(command.message, CheckpointCommitted):
                    self.promised = command.message.record.seq
                assert command.attempt == self.workers.attempt, f"{command} is for other workers"
                self.workers.carry_out(command)

    def may_be_troubled(self) -> bool:
        return self.now >= self.calm_until

    def trouble_comes(self) -> None:
        self.calm_until = self.now + self.calm

    # What workers do

    def report(self, rank: int, mode: str | None, score: str) -> None:
        if rank in self.lookers:
            self.workers.look(rank)
        seq = self.workers.counts[rank] + 1
        name = "best" if self.reuse_names and seq % 3 == 0 else f"checkpoint_{seq:06d}"
        metrics = f'{{"rank":{rank},"at":{self.now},"score":{score},"eval":{{"score":{score}}}}}'
        self.workers.report(rank, msgspec.Raw(metrics.encode()), mode, name, self.model.driver.validates)

    @precondition(lambda self: self.workers.reporting())
    @rule(pick=picks, ahead=st.lists(modes, min_size=1, max_size=4), score=scores)
    def one_reports(self, pick: int, ahead: list[str | None], score: str) -> None:
        """Perhaps several times, ahead of the others."""
        rank = choose(self.workers.reporting(), pick)
        for mode in ahead:
            if rank in self.workers.reporting():
                self.report(rank, mode, score)

    @precondition(lambda self: self.workers.reporting())
    @rule(mode_of=st.tuples(*4 * [modes]), score_of=st.tuples(*4 * [scores]))
    def everyone_reports(self, mode_of: tuple[str | None, ...], score_of: tuple[str, ...]) -> None:
        for rank in self.workers.reporting():
            self.report(rank, mode_of[rank], score_of[rank])

    @precondition(lambda self: self.workers.reporting())
    @rule(mode_of=st.tuples(*4 * [modes]), score_of=st.tuples(*4 * [scores]))
    def all_goes_well(self, mode_of: tuple[str | None, ...], score_of: tuple[str, ...]) -> None:
        """Everyone reports, and nothing is late; what was late before is caught up with."""
        self.everyone_reports(mode_of, score_of)
        while any(self.workers.uploads):
            self.one_uploads(pick=0)
        while any(self.workers.wires):
            self.all_messages_arrive(first=0)
        if not self.slow_storage:
            self.storage_catches_up()

    @precondition(lambda self: any(self.workers.uploads))
    @rule(pick=picks, well=st.sampled_from([True, True, False]))
    def one_uploads(self, pick: int, well: bool = True) -> None:
        rank = choose([rank for rank in self.workers.ranks if self.workers.uploads[rank]], pick)
        if well or not self.may_be_troubled():
            self.workers.upload(rank)
        else:
            self.trouble_comes()
            self.workers.fail_upload(rank)

    @precondition(lambda self: self.lookers.intersection(self.workers.free()))
    @rule()
    def some_look_for_notices(self) -> None:
        for rank in self.lookers.intersection(self.workers.free()):
            self.workers.look(rank)

    @precondition(lambda self: self.workers.unheld())
    @rule(pick=picks)
    def one_answers_hold(self, pick: int) -> None:
        self.workers.answer_hold(choose(self.workers.unheld(), pick))

    @precondition(lambda self: self.returning())
    @rule(pick=picks, all_of_them=st.booleans())
    def some_return(self, pick: int, all_of_them: bool) -> None:
        ranks = self.returning()
        for rank in ranks if all_of_them else [choose(ranks, pick)]:
            self.workers.leave(rank)
        if all_of_them:
            self.all_messages_arrive(pick)

    def returning(self) -> list[int]:
        """Not in calm times, which would else be short; but a stop may find any rank at its end."""
        return self.workers.free() if self.workers.hold or self.may_be_troubled() else []

    @precondition(lambda self: self.workers.at_work and self.may_be_troubled())
    @rule(pick=picks, failure=failures)
    def one_dies(self, pick: int, failure: WorkerFailure) -> None:
        self.trouble_comes()
        rank = choose(sorted(self.workers.at_work), pick)
        self.workers.die(rank, msgspec.structs.replace(failure, rank=rank))

    @precondition(lambda self: self.workers.reporting() and self.may_be_troubled())
    @rule(pick=picks, failure=failures, mode=st.sampled_from(["sync", "async"]), first=picks, stop=st.booleans())
    def one_dies_ahead_of_a_checkpoint(
        self, pick: int, failure: WorkerFailure, mode: str, first: int, stop: bool
    ) -> None:
        """Its report has returned; the others, who may have been asked to stop, are still to save."""
        rank = choose(self.workers.reporting(), pick)
        self.report(rank, None, "0")
        if stop and isinstance(self.run.phase, Running):
            self.stop_is_requested(at_once=False)
            for other in set(self.workers.unheld()) - {rank}:
                self.workers.answer_hold(other)
        self.workers.die(rank, msgspec.structs.replace(failure, rank=rank))
        self.trouble_comes()
        self.all_messages_arrive(first)
        for other in self.workers.reporting():
            if self.workers.counts[other] < self.workers.counts[rank]:
                self.report(other, mode, "0")

    @precondition(lambda self: self.workers.at_work and isinstance(self.run.phase, Running) and self.may_be_troubled())
    @rule(pick=picks)
    def one_is_called_hung(self, pick: int) -> None:
        self.trouble_comes()
        self.all_messages_arrive(first=pick)
        rank = choose(sorted(self.workers.at_work), pick)
        self.workers.hung.add(rank)
        self.send(HangSuspected(self.workers.attempt, WorkerFailure(rank, "hang", "stands", at=2.0), "restart"))

    @precondition(lambda self: self.workers.at_work and isinstance(self.run.phase, Running) and self.may_be_troubled())
    @rule(pick=picks)
    def all_are_lost_with_their_engine(self, pick: int) -> None:
        self.one_dies(pick, WorkerFailure(0, "engine", "the engine failed", at=2.0))
        self.all_messages_arrive(first=0)
        self.workers_are_gone()

    @precondition(lambda self: self.workers.at_work and self.may_be_troubled())
    @rule(pick=picks, kind=st.sampled_from(["user", "engine", "killed", "preempted"]), times=st.integers(2, 4))
    def one_dies_again_and_again(self, pick: int, kind: FailureKind, times: int) -> None:
        for _ in range(times):
            if isinstance(self.run.phase, BackingOff):
                self.the_deadline_passes()
                self.storage_catches_up()
            if self.workers.at_work:
                self.one_dies(pick, WorkerFailure(0, kind, f"again, at {self.now}", at=2.0))
                self.all_messages_arrive(first=0)
            if self.workers.may_be_gone():
                self.workers_are_gone()
            self.storage_catches_up()

    @precondition(lambda self: self.workers.stop_at is not None and self.workers.reporting())
    @rule(mode=modes, score=scores)
    def everyone_comes_to_the_stop(self, mode: str | None, score: str) -> None:
        while self.workers.stop_at is not None and (ranks := self.workers.reporting()):
            for rank in ranks:
                self.report(rank, mode if self.workers.counts[rank] + 1 == self.workers.stop_at else None, score)

    # What arrives

    @precondition(lambda self: any(self.workers.wires))
    @rule(pick=picks)
    def one_message_arrives(self, pick: int) -> None:
        self.send(choose([wire for wire in self.workers.wires if wire], pick).popleft())

    @precondition(lambda self: any(self.workers.wires))
    @rule(first=picks)
    def all_messages_arrive(self, first: int) -> None:
        for rank in sorted(self.workers.ranks, key=lambda rank: (rank - first) % len(self.workers.ranks)):
            while self.workers.wires[rank]:
                self.send(self.workers.wires[rank].popleft())

    @precondition(lambda self: self.delivered)
    @rule(back=st.integers(0, 40))
    def a_message_arrives_twice(self, back: int) -> None:
        before = self.run
        self.run, commands = step(before, self.delivered[-1 - back % len(self.delivered)], self.now)
        assert self.run is before, "a message counted twice"
        assert not commands, "a message counted twice"

    @precondition(lambda self: self.run.attempt > 1)
    @rule(age=st.integers(1, 3), seq=st.integers(1, 6), rank=st.integers(0, 2), failure=failures)
    def messages_of_an_older_attempt_arrive(self, age: int, seq: int, rank: int, failure: WorkerFailure) -> None:
        attempt = max(0, self.run.attempt - age)
        raw = msgspec.Raw(b"{}")
        for event in (
            Reported(attempt, rank, seq, raw, 0.0, "old.py:1", "old"),
            Committed(CheckpointRecord(seq, "old", attempt, raw)),
            CapacityChanged(attempt, 0),
            WorkerFailed(attempt, rank, failure),
            WorkersStopped(attempt),
            # A validation, unlike all else, outlives the attempt that asked for it.
            *([] if self.run.validating == (seq, attempt) else [ValidationEnded(attempt, seq, "old", "VALIDATED")]),
        ):
            before = self.run
            self.run, commands = step(before, event, self.now)
            assert self.run is before, f"an event of a dead attempt counted: {event}"
            assert not commands, f"an event of a dead attempt counted: {event}"

    @precondition(lambda self: self.workers.may_be_gone())
    @rule()
    def workers_are_gone(self) -> None:
        self.workers.end()
        self.send(WorkersStopped(self.workers.attempt))

    # What storage does, one thing after the other

    @precondition(lambda self: self.work)
    @rule(well=st.sampled_from([True, True, True, False]))
    def storage_works(self, well: bool) -> None:
        match self.work.popleft():
            case CommitCheckpoint(record=record) if well:
                self.commit(record)
                self.answers.append(Committed(record))
            case CommitCheckpoint(record=record):
                self.answers.append(CommitFailed(record.attempt, record.seq, "OSError: disk full"))
            case DeleteCheckpoint(record=record):
                newest = max(self.storage.values(), key=lambda other: other.seq)
                assert not is_same(newest, record), "the newest checkpoint is deleted"
                if is_same(self.storage.get(record.name), record):
                    del self.storage[record.name]
            case VerifyCheckpoint(attempt=attempt, record=record):
                if well and is_same(self.storage.get(record.name), record):
                    self.answers.append(CheckpointVerified(attempt, record.seq))
                    return
                self.storage.pop(record.name, None)
                self.promised = 0  # No promise holds against a broken disk.
                self.answers.append(CheckpointBroken(attempt, record.seq, "a file is missing"))

    def commit(self, record: CheckpointRecord) -> None:
        self.storage[record.name] = record
        self.done.add((record.attempt, record.seq))

    @precondition(lambda self: (self.work or self.answers) and not self.slow_storage)
    @rule()
    def storage_catches_up(self) -> None:
        while self.work or self.answers:
            while self.answers:
                self.a_storage_answer_arrives()
            if self.work:
                self.storage_works(well=True)

    @precondition(lambda self: self.answers)
    @rule()
    def a_storage_answer_arrives(self) -> None:
        self.send(self.answers.popleft())

    # What the validator does, beside all this

    @precondition(lambda self: self.validator is not None)
    @rule(score=scores, well=st.sampled_from([True, True, False]))
    def a_validation_ends(self, score: str, well: bool) -> None:
        record, self.validator = self.validator, None
        if isinstance(self.run.phase, Finished):
            return  # Its process is ended with the run, and nobody hears of it.
        metrics = f'{{"score":{score},"eval":{{"score":{score}}},"by":"validator"}}' if well else "{}"
        status = "VALIDATED" if well else "VALIDATION_FAILED"
        ended = ValidationEnded(record.attempt, record.seq, record.name, status, msgspec.Raw(metrics.encode()))
        self.send(ended)
        after = self.run
        assert step(after, ended, self.now) == (after, []), "what was found out twice counted twice"

    @precondition(lambda self: self.workers.reporting() and self.model.driver.validates and self.may_be_troubled())
    @rule(
        first=picks,
        score=scores,
        then=st.sampled_from(["", "", "early stop", "stop", "notice", "loss"]),
        next_driver=drivers,
    )
    def the_training_ends_before_a_validation(
        self, first: int, score: str, then: str, next_driver: DriverStarted
    ) -> None:
        self.everyone_catches_up()
        self.everyone_reports(("async!",) * 4, (score,) * 4)
        self.everyone_catches_up()
        for rank in self.workers.free():
            self.workers.leave(rank)
        self.all_messages_arrive(first)
        if then == "early stop" and isinstance(self.run.phase, Stopping):
            self.stop_is_requested(at_once=False)
        if self.workers.may_be_gone():
            self.workers_are_gone()
        if not isinstance(self.run.phase, Validating):
            return
        if then == "stop":
            self.stop_is_requested(at_once=False)
        elif then == "notice":
            self.the_driver_gets_a_preemption_notice(30.0, includes_driver=True)
        elif then == "loss":
            self.the_driver_is_lost(0, next_driver, well=True, twice=False)

    def everyone_catches_up(self) -> None:
        workers = self.workers
        while True:
            behind = [rank for rank in workers.reporting() if workers.counts[rank] < max(workers.counts)]
            if behind:
                self.report(behind[0], None, "0")
            elif any(workers.uploads):
                self.one_uploads(pick=0)
            elif any(workers.wires):
                self.all_messages_arrive(first=0)
            elif self.work or self.answers:
                self.storage_catches_up()
            else:
                return

    # What the user and the clock do

    @precondition(lambda self: not isinstance(self.run.phase, Finished) and self.may_be_troubled())
    @rule(at_once=st.sampled_from([False, False, False, True]))
    def stop_is_requested(self, at_once: bool) -> None:
        self.trouble_comes()
        self.send(StopRequested(self.run.attempt, at_once))

    # What others do who begin from a checkpoint of this run

    @precondition(lambda self: not isinstance(self.run.phase, Finished))
    @rule(ages=st.lists(st.integers(-1, 4), max_size=3), keep=st.booleans())
    def pins_are_set(self, ages: list[int], keep: bool) -> None:
        """On checkpoints that are there, counted from the newest; on one that is not yet; or on none any more."""
        newest = self.run.latest.seq if self.run.latest is not None else 0
        there = {record.seq for record in self.run.checkpoints}
        pins = {newest - age for age in ages} | set(self.run.pinned if keep else ())
        before = self.run
        # The attempt that was under way when they were asked for may be over.
        self.send(PinsSet(max(0, self.run.attempt - len(ages) % 2), tuple(sorted(pins))))
        assert self.run is not before, "whoever asked is not told"
        assert set(self.run.pinned) == pins & there
        assert set(self.run.pinned) <= {record.seq for record in self.run.checkpoints}

    # What the world takes and gives

    @precondition(lambda self: self.workers.at_work and self.may_be_troubled())
    @rule(pick=picks, grace_s=graces, includes_driver=st.booleans(), all_of_them=st.booleans())
    def workers_get_a_preemption_notice(
        self, pick: int, grace_s: float, includes_driver: bool, all_of_them: bool
    ) -> None:
        self.trouble_comes()
        ranks = sorted(self.workers.at_work)
        for rank in ranks if all_of_them else [choose(ranks, pick)]:
            self.workers.receive_notice(rank, grace_s, includes_driver)

    @precondition(lambda self: not isinstance(self.run.phase, Finished) and self.may_be_troubled())
    @rule(grace_s=graces, includes_driver=st.booleans())
    def the_driver_gets_a_preemption_notice(self, grace_s: float, includes_driver: bool) -> None:
        self.trouble_comes()
        self.send(PreemptionNoticeReceived(self.run.attempt, grace_s, includes_driver=includes_driver))

    @precondition(lambda self: isinstance(self.run.phase, Running) and self.may_be_troubled())
    @rule(first=picks, grace_s=st.none() | graces, includes_driver=st.booleans(), mode=modes)
    def an_end_is_agreed_on(self, first: int, grace_s: float | None, includes_driver: bool, mode: str | None) -> None:
        if grace_s is None:
            self.stop_is_requested(at_once=False)
        else:
            self.the_driver_gets_a_preemption_notice(grace_s, includes_driver)
        for rank in self.workers.unheld():
            self.workers.answer_hold(rank)
        self.all_messages_arrive(first)
        if grace_s is not None:
            self.everyone_comes_to_the_stop(mode, "0")

    @precondition(
        lambda self: (
            isinstance(self.run.phase, Waiting) or (not isinstance(self.run.phase, Finished) and self.may_be_troubled())
        )
    )
    @rule(num_places=places)
    def room_changes(self, num_places: int) -> None:
        self.send(CapacityChanged(self.run.attempt, num_places))

    @precondition(lambda self: self.workers.at_work and self.may_be_troubled())
    @rule(pick=picks, num_places=places, kind=st.sampled_from(["killed", "engine", "preempted"]))
    def one_is_lost_with_its_place(self, pick: int, num_places: int, kind: FailureKind) -> None:
        self.one_dies(pick, WorkerFailure(0, kind, "gone", at=2.0))
        self.room_changes(num_places)

    @precondition(lambda self: isinstance(self.run.phase, Running) and self.run.size < self.run.sizes[-1])
    @rule(soon=st.booleans())
    def there_is_room_again(self, soon: bool) -> None:
        self.room_changes(self.run.sizes[-1])
        if soon and next_resize(self.run) is not None:
            self.more_workers_may_join()
            self.all_goes_well(("async",) * 4, ("0",) * 4)
            self.storage_catches_up()

    @precondition(lambda self: next_resize(self.run) is not None)
    @rule()
    def more_workers_may_join(self) -> None:
        self.now = max(self.now, next_resize(self.run) or 0.0)
        self.send(ResizeDue(self.run.attempt))

    @precondition(lambda self: next_deadline(self.run) is not None or isinstance(self.run.phase, Stopping | Validating))
    @rule()
    def the_deadline_passes(self) -> None:
        """In time, or when the workers are already being ended, or gone."""
        self.now = max(self.now, next_deadline(self.run) or 0.0)
        self.send(DeadlinePassed(self.run.attempt))

    # What a lost driver leaves

    @precondition(lambda self: isinstance(self.run.phase, Finished) or self.may_be_troubled())
    @rule(
        num_lost=st.sampled_from([0, 0, 0, 1, 3, 10, 30]), next_driver=drivers, well=st.booleans(), twice=st.booleans()
    )
    def the_driver_is_lost(self, num_lost: int, next_driver: DriverStarted, well: bool, twice: bool) -> None:
        """Its workers die with it; journal, storage and the workers' own files are what the next driver finds."""
        self.trouble_comes()
        self.intact = False
        self.workers.end()
        self.answers.clear()
        self.work.clear()
        self.validator = None
        live = self.run
        self.replay(len(self.journal))
        assert self.run == live, "the journal tells of another run"
        assert without_times(self.journal, next_driver) == step(live, next_driver), "a time outlived its driver"
        if num_lost:
            self.replay(max(1, len(self.journal) - num_lost))
            # Attempts that nobody remembers are counted anew; their events must not count for the new ones.
            self.delivered = [event for event in self.delivered if event.attempt <= self.run.attempt]
        self.recover(well)
        if twice:
            # Lost again before it could say that it had begun.
            self.replay(len(self.journal))
            self.recover(well=True)
        self.send(next_driver)
        if isinstance(self.run.phase, Finished) and not self.run.pending_validations:
            self.open(next_driver)  # It was complete and nothing more can happen to it: another run.

    def replay(self, length: int) -> None:
        del self.journal[length:]
        self.run = Run()
        self.model = Model()
        self.requested: dict[int, CommitCheckpoint] = {}
        now = self.now
        for line, received_at in self.journal:
            self.now = received_at
            for command in self.take(events.decode_event(line)):
                if isinstance(command, CommitCheckpoint):
                    self.requested[command.record.seq] = command
        self.now = now

    def learn(self, event: Event) -> None:
        """Hear what the lost driver did not; of what it makes due, only commits are done."""
        before = self.run
        commands = self.take(event)
        if self.run is not before:
            self.journal.append((events.encode_event(event), self.now))
        self.requested.update({c.record.seq: c for c in commands if isinstance(c, CommitCheckpoint)})

    def recover(self, well: bool) -> None:
        if isinstance(self.run.phase, Running | Stopping):
            for rank_events in self.files[self.run.attempt]:
                for event in rank_events:
                    self.learn(event)
        for seq in self.run.committing:
            record = self.requested[seq].record
            if well and (record.attempt, record.seq) not in self.done:
                self.commit(record)
        journaled = set()
        for line, _ in self.journal:
            match events.decode_event(line):
                case Committed(record=record):
                    journaled.add((record.seq, record.attempt))
                case CheckpointsFound(records=records):
                    journaled |= {(record.seq, record.attempt) for record in records}
        unknown = [record for record in self.storage.values() if (record.seq, record.attempt) not in journaled]
        missing = tuple(record.seq for record in self.run.checkpoints if record.name not in self.storage)
        self.learn(CheckpointsFound(tuple(sorted(unknown, key=lambda record: record.seq)), missing))
        names = {record.name for record in self.run.checkpoints}
        newest = max(self.storage.values(), key=lambda record: record.seq, default=None)
        assert newest is None or newest.name in names, "the newest checkpoint is forgotten"
        self.storage = {name: record for name, record in self.storage.items() if name in names}

    # Whatever happened so far, answering what is owed ends the run

    def teardown(self) -> None:
        if not getattr(self, "intact", False):
            return  # A rule has failed; that is the error to tell.
        level, backwards = divmod(len(self.journal) % 4, 2)
        for _ in range(400):
            if isinstance(self.run.phase, Finished):
                self.the_driver_is_lost(0, self.model.driver, well=True, twice=False)
                return
            self.answer_something(level == 1, -1 if backwards else 0)
        raise AssertionError(f"stuck in {self.run}")

    def answer_something(self, level: bool, last: int) -> None:
        """One thing that is owed; `level`: ranks catch up with each other before they return."""
        workers = self.workers
        if self.answers:
            self.a_storage_answer_arrives()
        elif self.work:
            self.storage_works(well=True)
        elif self.validator is not None and (level or isinstance(self.run.phase, Validating)):
            self.a_validation_ends("1", well=True)
        elif any(workers.wires):
            self.all_messages_arrive(first=0)
        elif workers.may_be_gone():
            self.workers_are_gone()
        elif any(workers.uploads):
            self.one_uploads(pick=0)
        elif workers.unheld():
            self.one_answers_hold(pick=0)
        elif isinstance(self.run.phase, Waiting):
            self.room_changes(self.run.sizes[-1])
        else:
            behind = [rank for rank in workers.reporting() if workers.counts[rank] < max(workers.counts)]
            if level and behind:
                self.report(behind[0], None, "0")
            elif workers.free():
                workers.leave(workers.free()[last])
            elif next_deadline(self.run) is not None:
                self.the_deadline_passes()


def is_permutation(commands: list[Command], due: list[Command]) -> bool:
    """Values that have no order and no hash, so: each is taken out once, and nothing is left."""
    left = [comparable(command) for command in due]
    for command in map(comparable, commands):
        if command not in left:
            return False
        left.remove(command)
    return not left


def comparable(command: Command) -> Command:
    if isinstance(command, Broadcast) and hasattr(command.message, "removed"):
        message = msgspec.structs.replace(command.message, removed=tuple(sorted(command.message.removed)))
        return Broadcast(command.attempt, message)
    return command


def without_times(journal: list[tuple[bytes, float]], last: Event) -> tuple[Run, list[Command]]:
    """Where the journal and one more event lead when nobody remembers when things happened."""
    run = Run()
    for line, _ in journal:
        run, _ = step(run, events.decode_event(line))
    return step(run, last)


TestStepDoesWhatTheModelSays = pytest.mark.timeout(600)(RunMachine.TestCase)
TestStepDoesWhatTheModelSays.settings = settings(
    max_examples=300,
    stateful_step_count=60,
    deadline=None,
    # To read a failure, add Phase.shrink: it takes minutes, and leaves a handful of lines.
    phases=[Phase.explicit, Phase.reuse, Phase.generate],
    report_multiple_bugs=False,
    print_blob=True,
    suppress_health_check=list(HealthCheck),
)
