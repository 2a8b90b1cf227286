"""Everything that can happen to a run. Past tense, frozen, and one JSON object each in the journal.

Messages from workers are defined in `_engine/messages.py`. This module has the events of the driver's side, and the
union of all events.
"""

from typing import Literal

import msgspec

from paceline._core.checkpoint_records import CheckpointRecord as CheckpointRecord
from paceline._core.checkpoint_records import CheckpointStatus
from paceline._engine.messages import CheckpointStaged as CheckpointStaged
from paceline._engine.messages import ExitDelayed as ExitDelayed
from paceline._engine.messages import PreemptionNoticeReceived as PreemptionNoticeReceived
from paceline._engine.messages import RankUsage as RankUsage
from paceline._engine.messages import Reported as Reported
from paceline._engine.messages import StagingFailed as StagingFailed
from paceline._engine.messages import WorkerFailed as WorkerFailed
from paceline._engine.messages import WorkerFailure as WorkerFailure
from paceline._engine.messages import WorkerHeld as WorkerHeld
from paceline._engine.messages import WorkerReady as WorkerReady
from paceline._engine.messages import WorkerReturned as WorkerReturned
from paceline._engine.messages import WorkersStopped as WorkersStopped

JOURNAL_VERSION = 1


class Retention(msgspec.Struct, frozen=True):
    num_to_keep: int | None = None
    score_attribute: str | None = None
    score_order: str = "max"


class DriverStarted(msgspec.Struct, frozen=True, tag="driver_started"):
    """A driver opened the run: the first event, and the first after a driver was lost."""

    size: int
    max_failures: int
    retention: Retention = Retention()
    at: float = 0.0
    pid: int = 0
    host: str = ""
    version: int = JOURNAL_VERSION
    initial: str | None = None
    """A checkpoint from outside the run, used while the run has none of its own."""
    exit_grace_s: float = 10.0
    """How long a worker whose function has returned may take to exit."""
    max_preemption_failures: int = -1
    controller_failure_limit: int = -1
    sizes: tuple[int, ...] = ()
    """Allowed numbers of workers, ascending; only `size` if empty."""
    resize_every_s: float = 0.0
    num_places: int | None = None
    lease: int = 0
    """The fencing token of its lease: writes with a lower one are void from here on."""
    validates: bool = False
    pinned: tuple[int, ...] = ()
    """The checkpoints that other runs start from; see `PinsSet`."""
    purpose: str = ""
    """What the run is for, if the caller tracks that: it must be the same for every driver of the run."""


class CheckpointVerified(msgspec.Struct, frozen=True, tag="checkpoint_verified"):
    attempt: int
    seq: int


class CheckpointBroken(msgspec.Struct, frozen=True, tag="checkpoint_broken"):
    """Files of a committed checkpoint are missing or altered; the checkpoint was set aside."""

    attempt: int
    seq: int
    problem: str


class CheckpointsFound(msgspec.Struct, frozen=True, tag="checkpoints_found"):
    """A scan of storage disagrees with the journal."""

    records: tuple[CheckpointRecord, ...] = ()
    """Committed, but not in the journal."""
    missing: tuple[int, ...] = ()
    """In the journal, but no longer on storage."""


class Committed(msgspec.Struct, frozen=True, tag="committed"):
    record: CheckpointRecord
    took_s: float = 0.0
    """What the commit itself took. Only shown."""

    @property
    def attempt(self) -> int:
        return self.record.attempt


class CommitFailed(msgspec.Struct, frozen=True, tag="commit_failed"):
    attempt: int
    seq: int
    error: str


class ValidationEnded(msgspec.Struct, frozen=True, tag="validation_ended"):
    """A validation ended, in whatever way. `attempt` is the attempt that made the checkpoint."""

    attempt: int
    seq: int
    name: str
    status: CheckpointStatus
    metrics: msgspec.Raw = msgspec.Raw(b"{}")
    problem: str = ""


class RetentionSet(msgspec.Struct, frozen=True, tag="retention_set"):
    """The retention rules changed after the driver started."""

    attempt: int
    retention: Retention


class PinsSet(msgspec.Struct, frozen=True, tag="pins_set"):
    """The pins changed: retention keeps these checkpoints, because other runs start from them.

    Replaces all earlier pins. A deleted checkpoint cannot be pinned; `Run.pinned` after this event has the ones that
    exist.
    """

    attempt: int
    seqs: tuple[int, ...]


class StopRequested(msgspec.Struct, frozen=True, tag="stop_requested"):
    attempt: int
    now: bool = False


class CapacityChanged(msgspec.Struct, frozen=True, tag="capacity_changed"):
    """The engine's capacity grew or shrank."""

    attempt: int
    num_places: int


HangAction = Literal["warn", "restart", "fail"]


class HangSuspected(msgspec.Struct, frozen=True, tag="hang_suspected"):
    """A rank has not moved for longer than expected for this run; `failure` has the message."""

    attempt: int
    failure: WorkerFailure
    action: HangAction = "warn"


class HangCleared(msgspec.Struct, frozen=True, tag="hang_cleared"):
    """A reported hang has cleared."""

    attempt: int
    rank: int
    after_s: float = 0.0


class DeadlinePassed(msgspec.Struct, frozen=True, tag="deadline_passed"):
    attempt: int


class ResizeDue(msgspec.Struct, frozen=True, tag="resize_due"):
    """There is capacity for more workers, and the current ones have run for the minimum time between resizes."""

    attempt: int


# Notes do not change the run. They are in the journal for people who read it.


class RunDescribed(msgspec.Struct, frozen=True, tag="run_described"):
    """The configuration, environment and code of a run. One of the first lines of a driver, unless the journal has it.

    `about` is an object with `config` (the train_loop_config), `scaling`, `run`, `backend`, `datasets`, `environment`
    (Python, packages, host, devices) and `code` (script, function, git, sources); see `train/driver/run_metadata.py`.
    """

    about: msgspec.Raw


class Timestamp(msgspec.Struct, frozen=True, tag="timestamp"):
    """The time of the events up to the next timestamp, in seconds since the epoch."""

    at: float


class StageUse(msgspec.Struct, frozen=True, array_like=True):
    """Totals of one stage of a dataset so far, over all its processes."""

    dataset: str
    name: str
    num_rows: int = 0
    num_bytes: int = 0
    busy_s: float = 0.0
    waited_for_input_s: float = 0.0
    waited_for_room_s: float = 0.0
    limits: bool = False
    """The other stages wait for this one."""


class UsageMeasured(msgspec.Struct, frozen=True, tag="usage_measured"):
    """Usage of the ranks that answered, and progress of the datasets. Sent every few seconds, and when workers end."""

    attempt: int
    at: float
    ranks: tuple[RankUsage, ...] = ()
    stages: tuple[StageUse, ...] = ()
    consumers_wait: bool = False
    """Whether the workers wait for the datasets, and not the stages for the workers."""


class DiagnosticFileWritten(msgspec.Struct, frozen=True, tag="diagnostic_file_written"):
    """A requested file, such as a profile, was written."""

    kind: Literal["stacks", "trace", "flame", "stacks-folded"]
    path: str
    """Relative to the run's directory."""
    rank: int
    at: float
    seconds: float = 0.0


Note = RunDescribed | Timestamp | UsageMeasured | DiagnosticFileWritten

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
    | ExitDelayed
    | WorkerReturned
    | WorkerFailed
    | WorkersStopped
    | StopRequested
    | PreemptionNoticeReceived
    | CapacityChanged
    | HangSuspected
    | HangCleared
    | DeadlinePassed
    | ResizeDue
    | RunDescribed
    | Timestamp
    | UsageMeasured
    | DiagnosticFileWritten
)

encode_event = msgspec.json.Encoder().encode
decode_event = msgspec.json.Decoder(Event).decode
