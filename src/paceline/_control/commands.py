"""What the controller is to do: imperative, frozen, returned by `step`."""

import msgspec

from paceline._control.run import Preemption
from paceline._core.checkpoint_records import CheckpointRecord, StagedFiles


class VerifyCheckpoint(msgspec.Struct, frozen=True):
    attempt: int
    record: CheckpointRecord


class StartWorkers(msgspec.Struct, frozen=True):
    attempt: int
    size: int
    resume: CheckpointRecord | None


class CommitCheckpoint(msgspec.Struct, frozen=True):
    record: CheckpointRecord
    parts: tuple[StagedFiles, ...]


class DeleteCheckpoint(msgspec.Struct, frozen=True):
    record: CheckpointRecord


class AnnounceCommit(msgspec.Struct, frozen=True):
    """Tell every worker that a checkpoint exists, and which ones were deleted."""

    attempt: int
    record: CheckpointRecord
    removed: tuple[int, ...] = ()


class AnnounceRefusal(msgspec.Struct, frozen=True):
    """Tell every worker that a checkpoint could not be committed."""

    attempt: int
    seq: int
    error: str
    rank: int | None = None
    """The rank whose files could not be staged, if that is the reason."""


class StartValidation(msgspec.Struct, frozen=True):
    record: CheckpointRecord


class AnnounceValidation(msgspec.Struct, frozen=True):
    """Tell every worker the result of a validation, and which checkpoints were deleted because of it."""

    attempt: int
    record: CheckpointRecord
    removed: tuple[int, ...] = ()


class AnnounceRemoval(msgspec.Struct, frozen=True):
    """Tell every worker which checkpoints were deleted."""

    attempt: int
    removed: tuple[int, ...]


class HoldWorkers(msgspec.Struct, frozen=True):
    attempt: int


class StopWorkersAt(msgspec.Struct, frozen=True):
    attempt: int
    seq: int
    save: bool = True
    preemption: Preemption | None = None
    """Shown to user code that checks for preemption notices."""


class StopWorkers(msgspec.Struct, frozen=True):
    attempt: int
    kill: bool
    """False: they have returned and only need to exit. True: kill them now."""


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
