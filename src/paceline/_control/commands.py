"""What the controller is to do: imperative, frozen, returned by `step`."""

import msgspec

from paceline._control.run import Preemption
from paceline._core.checkpoint_records import CheckpointRecord, StagedFiles
from paceline._engine import messages


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


class StartValidation(msgspec.Struct, frozen=True):
    record: CheckpointRecord


class Broadcast(msgspec.Struct, frozen=True):
    """Send a message to every worker: a checkpoint was committed, refused, validated or deleted, or `Hold`."""

    attempt: int
    message: messages.ToWorker


class StopWorkersAt(msgspec.Struct, frozen=True):
    attempt: int
    seq: int
    save: bool = True
    preemption: Preemption | None = None
    """Shown to user code that checks for preemption notices."""
    num_checks: int = 0
    """How many of its checks after report `seq - 2` do not return it."""


class StopWorkers(msgspec.Struct, frozen=True):
    attempt: int
    kill: bool
    """False: they have returned and only need to exit. True: kill them now."""


Command = (
    VerifyCheckpoint
    | StartWorkers
    | CommitCheckpoint
    | DeleteCheckpoint
    | StartValidation
    | Broadcast
    | StopWorkersAt
    | StopWorkers
)
