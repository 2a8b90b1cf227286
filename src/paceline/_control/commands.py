"""What a run asks for: imperative, frozen, carried out by the controller."""

from dataclasses import dataclass

from paceline._control.run import Preemption
from paceline._engine.messages import CheckpointRecord, Staged


@dataclass(frozen=True)
class VerifyCheckpoint:
    attempt: int
    record: CheckpointRecord


@dataclass(frozen=True)
class StartWorkers:
    attempt: int
    size: int
    resume: CheckpointRecord | None


@dataclass(frozen=True)
class CommitCheckpoint:
    record: CheckpointRecord
    parts: tuple[Staged, ...]


@dataclass(frozen=True)
class DeleteCheckpoint:
    record: CheckpointRecord


@dataclass(frozen=True)
class AnnounceCommit:
    """Tell every worker that a checkpoint exists, and which ones no longer do."""

    attempt: int
    record: CheckpointRecord
    removed: tuple[int, ...] = ()


@dataclass(frozen=True)
class AnnounceRefusal:
    """Tell every worker that a checkpoint could not be committed."""

    attempt: int
    seq: int
    error: str
    rank: int | None = None
    """Whose files could not be staged, if that is why."""


@dataclass(frozen=True)
class StartValidation:
    record: CheckpointRecord


@dataclass(frozen=True)
class AnnounceValidation:
    """Tell every worker what became of a validation, and which checkpoints no longer exist since."""

    attempt: int
    record: CheckpointRecord
    removed: tuple[int, ...] = ()


@dataclass(frozen=True)
class AnnounceRemoval:
    """Tell every worker which checkpoints no longer exist."""

    attempt: int
    removed: tuple[int, ...]


@dataclass(frozen=True)
class HoldWorkers:
    attempt: int


@dataclass(frozen=True)
class StopWorkersAt:
    attempt: int
    seq: int
    save: bool = True
    preemption: Preemption | None = None
    """What code that looks for it is told."""


@dataclass(frozen=True)
class StopWorkers:
    attempt: int
    kill: bool
    """False: they have returned and only need to leave. True: now."""


Command = (
    VerifyCheckpoint
    | StartWorkers
    | CommitCheckpoint
    | DeleteCheckpoint
    | AnnounceCommit
    | AnnounceRefusal
    | StartValidation
    | AnnounceValidation
    | AnnounceRemoval
    | HoldWorkers
    | StopWorkersAt
    | StopWorkers
)
