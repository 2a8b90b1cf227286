"""What a train function calls: `report`, `get_context`, `get_checkpoint` and their siblings."""

from __future__ import annotations

import enum
import socket
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import cloudpickle
import msgspec

from paceline._core.plain import unplain
from paceline._core.spending import CHECKPOINT
from paceline._storage.commit import has_manifest
from paceline._storage.layout import names_checkpoint
from paceline._worker import context as worker_context
from paceline._worker.context import Context
from paceline._worker.upload import Directory, InPlace, Source, State
from paceline.train.checkpoint import Checkpoint
from paceline.train.datasets import shard_of
from paceline.train.validation import ValidationTaskConfig, task_of

if TYPE_CHECKING:
    from paceline.data.iterator import DataIterator


class CheckpointUploadMode(enum.Enum):
    """When `report(checkpoint=...)` returns, and who moves the files."""

    SYNC = "SYNC"
    """Once the checkpoint is committed: any crash from then on resumes from it or a later one."""
    ASYNC = "ASYNC"
    """At once; the files are staged and committed in the background, one at a time."""
    NO_UPLOAD = "NO_UPLOAD"
    """Once committed; the files already lie in a directory below the run's own."""


class CheckpointConsistencyMode(enum.Enum):
    """What `get_all_reported_checkpoints` waits for."""

    COMMITTED = "COMMITTED"
    VALIDATED = "VALIDATED"


class ReportedCheckpointStatus(enum.Enum):
    """Where a committed checkpoint stands with its validation."""

    COMMITTED = "COMMITTED"
    """None was asked for."""
    PENDING_VALIDATION = "PENDING_VALIDATION"
    VALIDATED = "VALIDATED"
    """What the validation returned is among the metrics."""
    VALIDATION_TIMEOUT = "VALIDATION_TIMEOUT"
    VALIDATION_FAILED = "VALIDATION_FAILED"


@dataclass(frozen=True)
class ReportedCheckpoint:
    """A committed checkpoint with the metrics it was reported with, and those of its validation."""

    checkpoint: Checkpoint
    metrics: dict[str, Any]
    status: ReportedCheckpointStatus = ReportedCheckpointStatus.COMMITTED


@dataclass(frozen=True)
class PreemptionInfo:
    """A machine of the run is about to be taken away."""

    deadline_ms: int
    """When, in milliseconds since the epoch."""
    preempted_node_to_ranks: dict[str, list[int]]

    @property
    def preempted_node_ids(self) -> list[str]:
        return sorted(self.preempted_node_to_ranks)

    @property
    def preempted_ranks(self) -> list[int]:
        return sorted(rank for ranks in self.preempted_node_to_ranks.values() for rank in ranks)


class TrialResources(dict[str, float]):
    """Amounts by name. Scripts for Ray ask for them as those of a placement group: they are its one bundle."""

    @property
    def bundles(self) -> list[dict[str, float]]:
        return [dict(self)]

    @property
    def required_resources(self) -> dict[str, float]:
        return dict(self)


class TrainContext:
    """Who this worker is."""

    def __init__(self, context: Context) -> None:
        self._begin = context.begin
        self._depot = context.depot

    def get_experiment_name(self) -> str:
        return self._begin.run_name

    def get_world_size(self) -> int:
        return self._begin.world_size

    def get_world_rank(self) -> int:
        return self._begin.rank

    def get_local_rank(self) -> int:
        return self._begin.local_rank

    def get_local_world_size(self) -> int:
        return self._begin.local_world_size

    def get_node_rank(self) -> int:
        return self._begin.node_rank

    def get_global_batch_size(self) -> int | None:
        """What `ScalingConfig(global_batch_size=...)` says."""
        return self._begin.global_batch_size

    def get_trial_name(self) -> str:
        """A run is one trial: its name."""
        return self._begin.run_name

    def get_trial_dir(self) -> str:
        """The run's directory, or its address in a store."""
        return self.get_storage().experiment_fs_path

    def get_trial_resources(self) -> TrialResources:
        """What this worker has: its threads and its accelerators."""
        return TrialResources(CPU=float(self._begin.num_threads), GPU=float(len(self._begin.devices)))

    def get_storage(self) -> StorageContext:
        path, filesystem = self._depot.root()
        return StorageContext(path, filesystem)


@dataclass(frozen=True)
class StorageContext:
    """Where the run is kept, for code that puts files there itself (see `CheckpointUploadMode.NO_UPLOAD`)."""

    experiment_fs_path: str
    _filesystem: Any = None

    @property
    def storage_filesystem(self) -> Any:
        from pyarrow.fs import LocalFileSystem

        return self._filesystem if self._filesystem is not None else LocalFileSystem()

    def build_checkpoint_path_from_name(self, checkpoint_name: str) -> str:
        return str(Path(self.experiment_fs_path) / checkpoint_name)


def report(
    metrics: dict[str, Any] | None = None,
    checkpoint: Checkpoint | None = None,
    checkpoint_dir_name: str | None = None,
    checkpoint_upload_mode: CheckpointUploadMode = CheckpointUploadMode.SYNC,
    delete_local_checkpoint_after_upload: bool | None = None,
    checkpoint_upload_fn: Callable[[Checkpoint, str], Checkpoint] | None = None,
    validation: bool | ValidationTaskConfig = False,
    *,
    checkpoint_on_stop: Callable[[], Checkpoint] | None = None,
    **values: Any,
) -> None:
    """Record metrics, and optionally a checkpoint. `report(loss=0.1)` is `report({"loss": 0.1})`.

    Metrics alone never wait for anybody. A checkpoint is made of what all ranks gave in their report of the same
    number: every rank calls `report` equally often, with files or without, and the metrics of rank 0 go with it.
    `validation` asks for the checkpoint to be validated beside the training, as the trainer's `validation_config` says.

    `checkpoint_on_stop` is called on all ranks alike when the run is asked to stop at this very report (Ctrl-C, or the
    machine is being taken away) and no checkpoint was given: so not a step is lost.
    """
    context = _context("report")
    if values:
        metrics = {**(metrics or {}), **values}
    if not isinstance(metrics, dict):
        raise TypeError(f"metrics={metrics!r} is not a dict")
    if checkpoint is None:
        if validation:
            raise ValueError("Validation requires a checkpoint to be provided.")
        on_stop = checkpoint_on_stop
        context.report(metrics, on_stop=(lambda: _source(context, on_stop())) if on_stop is not None else None)
        return
    task = task_of(validation)
    if task is not None and not context.begin.validates:
        raise ValueError("`validation_config` was not set on the trainer, but a validation was requested.")
    if not isinstance(checkpoint, Checkpoint):
        raise TypeError(f"checkpoint={checkpoint!r} is not a paceline.train.Checkpoint")
    mode = CheckpointUploadMode(checkpoint_upload_mode)
    _check_dir_name(checkpoint_dir_name)
    delete = delete_local_checkpoint_after_upload
    source: Source
    with context.spending.at(CHECKPOINT):
        if mode is CheckpointUploadMode.NO_UPLOAD or checkpoint_upload_fn is not None:
            source = _uploaded(context, checkpoint, checkpoint_dir_name, mode, checkpoint_upload_fn)
            checkpoint_dir_name = source.path.relative_to(context.layout.root).as_posix()
        else:
            source = _source(context, checkpoint, delete if delete is not None else mode is CheckpointUploadMode.ASYNC)
        wait = mode is not CheckpointUploadMode.ASYNC
        context.report(metrics, source, name=checkpoint_dir_name, wait=wait, validation=task)


def get_context() -> TrainContext:
    """Rank, world size and the like of this worker."""
    return TrainContext(_context("get_context"))


def get_checkpoint() -> Checkpoint | None:
    """The newest checkpoint of the run, from this attempt or an earlier one; None where there is none yet."""
    context = _context("get_checkpoint")
    record = context.latest_checkpoint()
    if record is not None:
        return Checkpoint(*context.depot.place(record))
    if context.given is not None:
        given: Checkpoint = context.given
        return given
    begin = context.begin
    if begin.initial is None:
        return None
    filesystem = cloudpickle.loads(begin.initial_filesystem) if begin.initial_filesystem is not None else None
    return Checkpoint(begin.initial, filesystem)


def get_dataset_shard(dataset_name: str | None = None) -> DataIterator:
    """This worker's part of one of the trainer's `datasets`; of `"train"` where no name is given.

    Each iteration over it is an epoch. Where it stands goes into every checkpoint, and a worker that starts again goes
    on from there: with the rest of the epoch first.
    """
    return shard_of(_context("get_dataset_shard"), dataset_name if dataset_name is not None else "train")


def get_preemption_info() -> PreemptionInfo | None:
    """What is known of the machine being taken away; None as long as there is no such notice.

    All ranks see it in the same step: the one whose `report` will be the last. Give that one a checkpoint.
    """
    context = _context("get_preemption_info")
    notice = context.notice()
    if notice is None:
        return None
    nodes = {node: list(ranks) for node, ranks in notice.nodes} or {socket.gethostname(): list(notice.ranks)}
    return PreemptionInfo(int(notice.deadline * 1000), nodes)


def get_all_reported_checkpoints(
    consistency_mode: CheckpointConsistencyMode = CheckpointConsistencyMode.VALIDATED,
    timeout_s: float | None = None,
) -> list[ReportedCheckpoint]:
    """The checkpoints that are kept, the best last, once all that this worker reported are committed.

    With `VALIDATED`, the default, also once the validations that were asked for have ended. After `timeout_s` it
    returns what there is.
    """
    mode = CheckpointConsistencyMode(consistency_mode)
    context = _context("get_all_reported_checkpoints")
    return [
        ReportedCheckpoint(
            Checkpoint(*context.depot.place(record)),
            unplain(msgspec.json.decode(record.metrics)),
            ReportedCheckpointStatus(record.status),
        )
        for record in context.checkpoints(timeout_s, validated=mode is CheckpointConsistencyMode.VALIDATED)
    ]


def num_reports() -> int:
    """How many this worker has made."""
    return _context("num_reports").num_reports


def staging_directory() -> Path:
    """An empty directory on the run's own storage. A checkpoint made from it is moved into place, never copied."""
    return _context("staging_directory").uploader.scratch_directory()


def _context(function: str) -> Context:
    context = worker_context.current()
    if context is None:
        raise RuntimeError(
            f"`{function}` cannot be used outside of a Paceline training function: "
            "call it in the function that you pass to a trainer"
        )
    return context


def _check_dir_name(name: str | None) -> None:
    if name is None:
        return
    if not isinstance(name, str) or not names_checkpoint(name):
        raise ValueError(f"checkpoint_dir_name={name!r} is not a plain directory name")


def _source(context: Context, checkpoint: Checkpoint, delete: bool = False) -> Source:
    if not isinstance(checkpoint, Checkpoint):
        raise TypeError(f"checkpoint={checkpoint!r} is not a paceline.train.Checkpoint")
    if checkpoint.state is not None:
        tree, stem = checkpoint._taken()
        return State(tree, checkpoint.allow_pickle, stem, checkpoint._notes)
    return _directory(context, checkpoint, delete)


def _directory(context: Context, checkpoint: Checkpoint, delete: bool) -> Directory:
    if checkpoint.filesystem.type_name != "local":
        return Directory(Path(checkpoint.to_directory()), delete=True)
    path = Path(checkpoint.path).absolute()
    if not path.is_dir():
        raise ValueError(f"checkpoint: {path} is not a directory")
    if context.layout.root.is_relative_to(path):
        raise ValueError(f"checkpoint: {path} holds the run's own directory {context.layout.root}")
    return Directory(path, delete, checkpoint._complete)


def _uploaded(
    context: Context,
    checkpoint: Checkpoint,
    name: str | None,
    mode: CheckpointUploadMode,
    upload: Callable[[Checkpoint, str], Checkpoint] | None,
) -> InPlace:
    root = context.layout.root
    if context.begin.store is not None:
        raise ValueError(
            "NO_UPLOAD and checkpoint_upload_fn need a storage_path on this machine: "
            "into a store Paceline uploads by itself, with the modes SYNC and ASYNC"
        )
    if mode is not CheckpointUploadMode.NO_UPLOAD and upload is not None:
        checkpoint = upload(checkpoint, name or context.next_checkpoint_name())
        if not isinstance(checkpoint, Checkpoint):
            raise ValueError(f"checkpoint_upload_fn must return a `paceline.train.Checkpoint`, not {checkpoint!r}")
    path = Path(checkpoint.path).absolute()
    if path.parent != root or not path.is_dir() or path.is_symlink():
        raise ValueError(
            f"the checkpoint {path} is not a directory right below the run's own, {root}: "
            "with NO_UPLOAD or checkpoint_upload_fn the files have to lie there"
        )
    _check_dir_name(path.name)
    if has_manifest(path):
        raise ValueError(f"{path} is a committed checkpoint already, and its files must not change: use another name")
    return InPlace(path)
