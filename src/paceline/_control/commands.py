"""What a run asks for: imperative, frozen, carried out by the controller."""

import msgspec

from paceline._control.run import Preemption
from paceline._engine.messages import CheckpointRecord, Staged


class VerifyCheckpoint(msgspec.Struct, frozen=True):
    attempt: int
    record: CheckpointRecord


class StartWorkers(msgspec.Struct, frozen=True):
    attempt: int
    size: int
    resume: CheckpointRecord | None


class CommitCheckpoint(msgspec.Struct, frozen=True):
    record: CheckpointRecord
    parts: tuple[Staged, ...]


class DeleteCheckpoint(msgspec.Struct, frozen=True):
    record: CheckpointRecord


class AnnounceCommit(msgspec.Struct, frozen=True):
    """Tell every worker that a checkpoint exists, and which ones no longer do."""

    attempt: int
    record: CheckpointRecord
    removed: tuple[int, ...] = ()


class AnnounceRefusal(msgspec.Struct, frozen=True):
    """Tell every worker that a checkpoint could not be committed."""

    attempt: int
    seq: int
    error: str
    rank: int | None = None
    """Whose files could not be staged, if that is why."""


class StartValidation(msgspec.Struct, frozen=True):
    record: CheckpointRecord


class AnnounceValidation(msgspec.Struct, frozen=True):
    """Tell every worker what became of a validation, and which checkpoints no longer exist since."""

    attempt: int
    record: CheckpointRecord
    removed: tuple[int, ...] = ()


class AnnounceRemoval(msgspec.Struct, frozen=True):
    """Tell every worker which checkpoints no longer exist."""

    attempt: int
    removed: tuple[int, ...]


class HoldWorkers(msgspec.Struct, frozen=True):
    attempt: int


class StopWorkersAt(msgspec.Struct, frozen=True):
    attempt: int
    seq: int
    save: bool = True
    preemption: Preemption | None = None
    """What code that looks for it is told."""


class StopWorkers(msgspec.Struct, frozen=True):
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
