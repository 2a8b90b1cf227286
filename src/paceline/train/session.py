"""The functions that a train function calls: `report`, `get_context`, `get_checkpoint` and related ones."""

from __future__ import annotations

import enum
import hashlib
import json
import shutil
import socket
import tempfile
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import cloudpickle

from paceline._core.arguments import bad_value
from paceline._core.errors import SessionMisuseError
from paceline._core.plain_values import decode_plain
from paceline._core.time_accounting import CHECKPOINT
from paceline._engine.messages import WorkerInit
from paceline._storage.commit import has_manifest
from paceline._storage.run_layout import is_checkpoint_name
from paceline._worker import context as worker_context
from paceline._worker.context import WorkerContext
from paceline._worker.upload import CheckpointSource, Directory, InPlace, State
from paceline.train.checkpoint import Checkpoint, local_filesystem
from paceline.train.driver.datasets import open_shard
from paceline.train.driver.validation import ValidationTaskConfig, to_validation_task

if TYPE_CHECKING:
    from paceline.data.iterator import DataIterator

C = TypeVar("C", bound=Checkpoint)


class CheckpointUploadMode(enum.Enum):
    """When `report(checkpoint=...)` returns, and who moves the files."""

    SYNC = "SYNC"
    """Return once the checkpoint is committed: after any later crash the run resumes from it or a newer one."""
    ASYNC = "ASYNC"
    """Return at once; the files are staged and committed in the background, one checkpoint at a time.

    See `CheckpointConfig.on_backlog` for what happens if they are reported faster than they can be written.

    A directory is moved away before `report` returns, or copied with `delete_local_checkpoint_after_upload=False`: what
    you do to its path afterwards does not change the checkpoint.
    """
    NO_UPLOAD = "NO_UPLOAD"
    """Return once committed; the files are already in a directory below the run's own."""


class CheckpointConsistencyMode(enum.Enum):
    """What `get_all_reported_checkpoints` waits for."""

    COMMITTED = "COMMITTED"
    VALIDATED = "VALIDATED"


class ReportedCheckpointStatus(enum.Enum):
    """The validation status of a committed checkpoint."""

    COMMITTED = "COMMITTED"
    """No validation was requested."""
    PENDING_VALIDATION = "PENDING_VALIDATION"
    VALIDATED = "VALIDATED"
    """The metrics include what the validation returned."""
    VALIDATION_TIMEOUT = "VALIDATION_TIMEOUT"
    VALIDATION_FAILED = "VALIDATION_FAILED"


@dataclass(frozen=True)
class ReportedCheckpoint:
    """A committed checkpoint with the metrics it was reported with and those of its validation."""

    checkpoint: Checkpoint
    metrics: dict[str, Any]
    status: ReportedCheckpointStatus = ReportedCheckpointStatus.COMMITTED


@dataclass(frozen=True)
class PreemptionInfo:
    """A machine of the run is about to be preempted."""

    deadline_ms: int
    """The time of preemption, in milliseconds since the epoch."""
    preempted_node_to_ranks: dict[str, list[int]]

    @property
    def preempted_node_ids(self) -> list[str]:
        return sorted(self.preempted_node_to_ranks)

    @property
    def preempted_ranks(self) -> list[int]:
        return sorted(rank for ranks in self.preempted_node_to_ranks.values() for rank in ranks)


class TrialResources(dict[str, float]):
    """Amounts by resource name. Scripts for Ray expect a placement group: this is its only bundle."""

    @property
    def bundles(self) -> list[dict[str, float]]:
        return [dict(self)]

    @property
    def required_resources(self) -> dict[str, float]:
        return dict(self)


class TrainContext:
    """Rank, world size and other facts about this worker."""

    def __init__(self, context: WorkerContext) -> None:
        self._begin = context.begin
        self._run_store = context.store

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
        """The value of `ScalingConfig(global_batch_size=...)`."""
        return self._begin.global_batch_size

    def get_trial_name(self) -> str:
        """The name of the run, which counts as one trial."""
        return self._begin.run_name

    def get_trial_id(self) -> str:
        """An ID that is the same for all attempts and ranks of a run."""
        return self._begin.trial_id or f"{get_experiment_id(self._begin)[:5]}_00000"

    def get_metadata(self) -> dict[str, Any]:
        """The trainer's `metadata`; empty if it has none."""
        metadata: dict[str, Any] = json.loads(self._begin.user_metadata or "{}")
        return metadata

    def get_trial_dir(self) -> str:
        """The run's directory, or its URI in a store."""
        return self.get_storage().experiment_fs_path

    def get_trial_resources(self) -> TrialResources:
        """The threads and accelerators of this worker."""
        return TrialResources(CPU=float(self._begin.num_threads), GPU=float(len(self._begin.devices)))

    def get_storage(self) -> StorageContext:
        path, filesystem = self._run_store.locate_run()
        return StorageContext(path, filesystem)


def get_experiment_id(begin: WorkerInit) -> str:
    """Return an ID of the run, derived from its storage location."""
    return hashlib.sha256(f"{begin.store or ''} {begin.run_path}".encode()).hexdigest()[:32]


@dataclass(frozen=True)
class StorageContext:
    """Where the run is stored, for code that writes files there itself (see `CheckpointUploadMode.NO_UPLOAD`)."""

    experiment_fs_path: str
    _filesystem: Any = None

    @property
    def storage_filesystem(self) -> Any:
        return self._filesystem if self._filesystem is not None else local_filesystem()

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
    """Record metrics and, optionally, a checkpoint. `report(loss=0.1)` is `report({"loss": 0.1})`.

    A report of metrics alone never waits. A checkpoint consists of the files that all ranks pass in their report of the
    same number, so every rank must call `report` the same number of times, with or without files. It is stored with
    the metrics of rank 0. `validation` requests validation of the checkpoint during training, as configured by the
    trainer's `validation_config`.

    If the run must stop at this report (Ctrl-C or preemption) and no checkpoint was passed, `checkpoint_on_stop` is
    called on all ranks, so that no step is lost.
    """
    context = _require_context("report")
    if values:
        metrics = {**(metrics or {}), **values}
    if not isinstance(metrics, dict):
        raise TypeError(f"metrics must be a dict, got {metrics!r}")
    if checkpoint is None:
        if validation:
            raise ValueError("Validation requires a checkpoint to be provided.")
        on_stop = checkpoint_on_stop
        if on_stop is None:
            context.report(metrics)
            return

        def make_source(make: Callable[[], Checkpoint]) -> CheckpointSource:
            made = make()
            _check_checkpoint(made)
            _add_trainer_metadata(context, made)
            return _to_source(context, made)

        context.report(metrics, on_stop=lambda: make_source(on_stop))
        return
    task = to_validation_task(validation)
    if task is not None and not context.begin.validates:
        raise ValueError("`validation_config` was not set on the trainer, but a validation was requested.")
    _check_checkpoint(checkpoint)
    mode = CheckpointUploadMode(checkpoint_upload_mode)
    _check_dir_name(checkpoint_dir_name)
    is_async = mode is CheckpointUploadMode.ASYNC
    delete = delete_local_checkpoint_after_upload
    source: CheckpointSource
    with context.time_accounting.at(CHECKPOINT):
        _add_trainer_metadata(context, checkpoint)
        if mode is CheckpointUploadMode.NO_UPLOAD or checkpoint_upload_fn is not None:
            source = _to_in_place_source(context, checkpoint, checkpoint_dir_name, mode, checkpoint_upload_fn)
            checkpoint_dir_name = source.path.relative_to(context.layout.root).as_posix()
        else:
            source = _to_source(context, checkpoint, is_async if delete is None else delete)
        context.report(metrics, source, name=checkpoint_dir_name, wait=not is_async, validation=task)


def get_context() -> TrainContext:
    """Return the context of this worker: rank, world size and so on."""
    return TrainContext(_require_context("get_context"))


def get_checkpoint() -> Checkpoint | None:
    """Return the newest checkpoint of the run, from this or an earlier attempt; None if there is none yet."""
    context = _require_context("get_checkpoint")
    record = context.latest_checkpoint()
    if record is not None:
        latest = Checkpoint(*context.store.locate_checkpoint(record))
        latest._is_verified = True  # By the driver before this attempt, or it was written in this attempt.
        return latest
    if context.given_checkpoint is not None:
        checkpoint: Checkpoint = context.given_checkpoint
        return checkpoint
    begin = context.begin
    if begin.initial is None:
        return None
    filesystem = cloudpickle.loads(begin.initial_filesystem) if begin.initial_filesystem is not None else None
    return Checkpoint(begin.initial, filesystem)


def get_dataset_shard(dataset_name: str | None = None) -> DataIterator:
    """Return this worker's shard of one of the trainer's `datasets`; by default of `"train"`.

    Each iteration over it is an epoch. Every checkpoint stores its position, and a restarted worker continues from
    there, first with the rest of that epoch.
    """
    return open_shard(_require_context("get_dataset_shard"), dataset_name if dataset_name is not None else "train")


def get_preemption_info() -> PreemptionInfo | None:
    """Return information about an upcoming preemption; None as long as there is no notice.

    All ranks see it from the same call on, and there is a `report` after it: pass a checkpoint to that report.
    """
    context = _require_context("get_preemption_info")
    notice = context.preemption_notice()
    if notice is None:
        return None
    nodes = {node: list(ranks) for node, ranks in notice.nodes} or {socket.gethostname(): list(notice.ranks)}
    return PreemptionInfo(int(notice.deadline * 1000), nodes)


def get_all_reported_checkpoints(
    consistency_mode: CheckpointConsistencyMode = CheckpointConsistencyMode.VALIDATED,
    timeout_s: float | None = None,
) -> list[ReportedCheckpoint]:
    """Return the kept checkpoints, the best last, once all that this worker reported are committed.

    With `VALIDATED`, the default, also wait for the requested validations. After `timeout_s`, return what there is.
    """
    mode = CheckpointConsistencyMode(consistency_mode)
    context = _require_context("get_all_reported_checkpoints")
    return [
        ReportedCheckpoint(
            Checkpoint(*context.store.locate_checkpoint(record)),
            decode_plain(record.metrics),
            ReportedCheckpointStatus(record.status),
        )
        for record in context.checkpoints(timeout_s, validated=mode is CheckpointConsistencyMode.VALIDATED)
    ]


def num_reports() -> int:
    """Return how many reports this worker has made."""
    return _require_context("num_reports").num_reports


def staging_directory() -> Path:
    """Return an empty directory on the run's storage. A checkpoint created from it is moved into place, not copied."""
    return _require_context("staging_directory").uploader.staging_directory()


def new_checkpoint(cls: type[C]) -> C:
    """Return a checkpoint with an empty directory to write to.

    In a worker it is a `staging_directory`, not tied to the object: an ASYNC upload may still read it after the object
    is gone. Elsewhere it is a temporary directory that is deleted with the object.
    """
    if worker_context.current() is not None:
        return cls.from_directory(staging_directory())
    checkpoint = cls.from_directory(tempfile.mkdtemp(prefix="paceline-checkpoint-"))
    weakref.finalize(checkpoint, shutil.rmtree, checkpoint.path, ignore_errors=True)
    return checkpoint


def _require_context(function: str) -> WorkerContext:
    context = worker_context.current()
    if context is None:
        raise SessionMisuseError(
            f"`{function}` cannot be used outside of a Paceline training function: "
            "call it in the function that you pass to a trainer"
        )
    return context


def _check_checkpoint(checkpoint: Any) -> None:
    if not isinstance(checkpoint, Checkpoint):
        raise TypeError(
            f"checkpoint must be a paceline.train.Checkpoint, got {checkpoint!r:.200}\n\n"
            "hint: Checkpoint.from_directory(path) makes one of files, Checkpoint.from_dict(state) of values"
        )


def _add_trainer_metadata(context: WorkerContext, checkpoint: Checkpoint) -> None:
    """Add the trainer's `metadata` to what rank 0 saves. What the checkpoint says itself takes precedence."""
    if context.begin.user_metadata and context.begin.rank == 0:
        checkpoint.set_metadata({**json.loads(context.begin.user_metadata), **checkpoint.get_metadata()})


def _check_dir_name(name: str | None) -> None:
    if name is not None and not (isinstance(name, str) and is_checkpoint_name(name)):
        raise bad_value("checkpoint_dir_name", "a plain directory name", name)


def _to_source(context: WorkerContext, checkpoint: Checkpoint, delete: bool = False) -> CheckpointSource:
    _check_checkpoint(checkpoint)
    if checkpoint.state is not None:
        tree, stem = checkpoint._state_for_rank()
        return State(tree, checkpoint.allow_pickle, stem, checkpoint._metadata_json)
    if checkpoint.filesystem.type_name != "local":
        return Directory(Path(checkpoint.to_directory()), delete=True)
    path = Path(checkpoint.path).absolute()
    if not path.is_dir():
        raise ValueError(f"cannot read the checkpoint {path}: not a directory")
    if context.layout.root.is_relative_to(path):
        raise ValueError(f"the checkpoint {path} must not contain the run's directory {context.layout.root}")
    is_written = type(checkpoint)._wait_until_complete is Checkpoint._wait_until_complete
    return Directory(path, delete, None if is_written else checkpoint._wait_until_complete)


def _to_in_place_source(
    context: WorkerContext,
    checkpoint: Checkpoint,
    name: str | None,
    mode: CheckpointUploadMode,
    upload: Callable[[Checkpoint, str], Checkpoint] | None,
) -> InPlace:
    root = context.layout.root
    if context.begin.store is not None:
        raise ValueError(
            "NO_UPLOAD and checkpoint_upload_fn need a storage_path on this machine; "
            "use the modes SYNC or ASYNC to upload to a store"
        )
    if mode is not CheckpointUploadMode.NO_UPLOAD and upload is not None:
        checkpoint = upload(checkpoint, name or context.next_checkpoint_name())
        if not isinstance(checkpoint, Checkpoint):
            raise ValueError(f"checkpoint_upload_fn must return a `paceline.train.Checkpoint`, got {checkpoint!r}")
    path = Path(checkpoint.path).absolute()
    if path.parent != root or not path.is_dir() or path.is_symlink():
        raise ValueError(
            f"with NO_UPLOAD or checkpoint_upload_fn, the checkpoint must be a directory directly in {root}, got {path}"
        )
    _check_dir_name(path.name)
    if has_manifest(path):
        raise ValueError(f"{path} is already a committed checkpoint, which must not change: use another name")
    return InPlace(path)
