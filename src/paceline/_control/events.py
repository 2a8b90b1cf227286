"""What can happen to a run. Past tense, frozen, and one JSON object each in the journal.

What a worker says is defined with the other messages in `_engine/messages.py`; here are the events that arise
on the driver's side, and the union of them all.
"""

from typing import Literal

import msgspec

from paceline._engine.messages import (
    CheckpointRecord,
    CheckpointStaged,
    CheckpointStatus,
    Failure,
    PreemptionTold,
    RankUse,
    Reported,
    StagingFailed,
    WorkerFailed,
    WorkerHeld,
    WorkerReady,
    WorkerReturned,
    WorkersStopped,
)

JOURNAL_VERSION = 1


class Retention(msgspec.Struct, frozen=True):
    num_to_keep: int | None = None
    score_attribute: str | None = None
    score_order: str = "max"


class DriverStarted(msgspec.Struct, frozen=True, tag=True):
    """A driver took the run in hand: the first of all events, and the first after a driver was lost."""

    size: int
    max_failures: int
    retention: Retention = Retention()
    at: float = 0.0
    pid: int = 0
    host: str = ""
    version: int = JOURNAL_VERSION
    initial: str | None = None
    """A checkpoint from outside the run, for as long as the run has none of its own."""
    max_preemption_failures: int = -1
    controller_failure_limit: int = -1
    sizes: tuple[int, ...] = ()
    """How many workers there may be, in rising order; `size` alone if empty."""
    resize_every_s: float = 0.0
    num_places: int | None = None
    """How many workers there is room for, where that was asked."""
    lease: int = 0
    """The number under which it holds the run: what an older one does from here on is void."""
    validates: bool = False
    """Whether it knows how a checkpoint is validated."""
    pinned: tuple[int, ...] = ()
    """The checkpoints that others begin from; see `PinsSet`."""
    purpose: str = ""
    """What the run is made for, where somebody keeps account of that: another driver's must be the same."""


class CheckpointVerified(msgspec.Struct, frozen=True, tag=True):
    attempt: int
    seq: int


class CheckpointBroken(msgspec.Struct, frozen=True, tag=True):
    """Files of a committed checkpoint are missing or altered; it was set aside."""

    attempt: int
    seq: int
    problem: str


class CheckpointsFound(msgspec.Struct, frozen=True, tag=True):
    """Storage was looked through, and tells otherwise than the journal."""

    records: tuple[CheckpointRecord, ...] = ()
    """Committed, and not in the journal."""
    missing: tuple[int, ...] = ()
    """In the journal, and no longer there."""


class Committed(msgspec.Struct, frozen=True, tag=True):
    record: CheckpointRecord

    @property
    def attempt(self) -> int:
        return self.record.attempt


class CommitFailed(msgspec.Struct, frozen=True, tag=True):
    attempt: int
    seq: int
    error: str


class ValidationEnded(msgspec.Struct, frozen=True, tag=True):
    """The validation of a checkpoint has come to an end, whichever. `attempt` is the one that made the checkpoint."""

    attempt: int
    seq: int
    name: str
    status: CheckpointStatus
    metrics: msgspec.Raw = msgspec.Raw(b"{}")
    problem: str = ""


class RetentionSet(msgspec.Struct, frozen=True, tag=True):
    """From now on other checkpoints are kept than the driver said when it began."""

    attempt: int
    retention: Retention


class PinsSet(msgspec.Struct, frozen=True, tag=True):
    """Others begin from these checkpoints, so retention leaves them: all pins from now on, whichever were before.

    One that is no longer there cannot be pinned; `Run.pinned` after this event says which are.
    """

    attempt: int
    seqs: tuple[int, ...]


class StopRequested(msgspec.Struct, frozen=True, tag=True):
    attempt: int
    now: bool = False


class CapacityChanged(msgspec.Struct, frozen=True, tag=True):
    """The engine has room for more workers than before, or for fewer."""

    attempt: int
    num_places: int


HangAction = Literal["warn", "restart", "fail"]


class HangSuspected(msgspec.Struct, frozen=True, tag=True):
    """A rank has stood at one place for longer than its run lets expect; `failure` has the sentence about it."""

    attempt: int
    failure: Failure
    action: HangAction = "warn"


class HangPassed(msgspec.Struct, frozen=True, tag=True):
    """A hang that was told of is none any more."""

    attempt: int
    rank: int
    after_s: float = 0.0


class DeadlinePassed(msgspec.Struct, frozen=True, tag=True):
    attempt: int


class ResizeDue(msgspec.Struct, frozen=True, tag=True):
    """There is room for more workers, and those that run have run as long as they are left alone."""

    attempt: int


# Notes: they change nothing about the run. They are in its journal for those who look at it.


class Described(msgspec.Struct, frozen=True, tag=True):
    """What a driver was asked to do and with what: among the first lines that it writes, unless the journal has it.

    `about` is an object with `config` (the train_loop_config), `scaling`, `run`, `backend`, `datasets`, `environment`
    (Python, packages, host, devices) and `code` (script, function, git, sources); see `train/described.py`.
    """

    about: msgspec.Raw


class TimeTold(msgspec.Struct, frozen=True, tag=True):
    """What follows up to the next of these took place at this time, in seconds since the epoch."""

    at: float


class StageUse(msgspec.Struct, frozen=True, array_like=True):
    """What one stage of a dataset has done so far, over all its processes."""

    dataset: str
    name: str
    num_rows: int = 0
    num_bytes: int = 0
    busy_s: float = 0.0
    waited_for_input_s: float = 0.0
    waited_for_room_s: float = 0.0
    limits: bool = False
    """The other stages wait for this one."""


class Measured(msgspec.Struct, frozen=True, tag=True):
    """What the ranks that answered have used, and how the datasets go. Every few seconds, and as workers end."""

    attempt: int
    at: float
    ranks: tuple[RankUse, ...] = ()
    stages: tuple[StageUse, ...] = ()
    consumers_wait: bool = False
    """Of datasets: whether it is the workers that wait, and not the stages for them."""


class FileMade(msgspec.Struct, frozen=True, tag=True):
    """Somebody asked for this file of the run, and here it is: a profile, say."""

    kind: Literal["stacks", "trace", "flame", "stacks-folded"]
    path: str
    """Below the run's directory."""
    rank: int
    at: float
    seconds: float = 0.0


Note = Described | TimeTold | Measured | FileMade

Event = (
    DriverStarted
    | CheckpointsFound
    | CheckpointVerified
    | CheckpointBroken
    | WorkerReady
    | Reported
    | CheckpointStaged
    | StagingFailed
    | Committed
    | CommitFailed
    | ValidationEnded
    | RetentionSet
    | PinsSet
    | WorkerHeld
    | WorkerReturned
    | WorkerFailed
    | WorkersStopped
    | StopRequested
    | PreemptionTold
    | CapacityChanged
    | HangSuspected
    | HangPassed
    | DeadlinePassed
    | ResizeDue
    | Described
    | TimeTold
    | Measured
    | FileMade
)

encode = msgspec.json.Encoder().encode
decode = msgspec.json.Decoder(Event).decode

__all__ = [
    "CapacityChanged",
    "CheckpointBroken",
    "CheckpointRecord",
    "CheckpointStaged",
    "CheckpointsFound",
    "CheckpointVerified",
    "CommitFailed",
    "Committed",
    "DeadlinePassed",
    "Described",
    "DriverStarted",
    "Event",
    "Failure",
    "FileMade",
    "HangAction",
    "HangPassed",
    "HangSuspected",
    "JOURNAL_VERSION",
    "Measured",
    "Note",
    "PinsSet",
    "PreemptionTold",
    "RankUse",
    "Reported",
    "ResizeDue",
    "Retention",
    "RetentionSet",
    "StageUse",
    "StagingFailed",
    "StopRequested",
    "TimeTold",
    "ValidationEnded",
    "WorkerFailed",
    "WorkerHeld",
    "WorkerReady",
    "WorkerReturned",
    "WorkersStopped",
    "decode",
    "encode",
]
