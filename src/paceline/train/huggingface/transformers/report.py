"""The callback that reports what a Transformers trainer logs and saves."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from transformers.trainer_callback import TrainerCallback
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR

from paceline._core.time_accounting import CHECKPOINT, account_time
from paceline.train import collective
from paceline.train.checkpoint import Checkpoint
from paceline.train.session import CheckpointUploadMode, _require_context, report, staging_directory

if TYPE_CHECKING:
    from paceline._engine.messages import WorkerInit


class ReportCallback(TrainerCallback):  # type: ignore[misc]
    """Reports metrics when the trainer logs them, and a checkpoint when it saves one.

        trainer.add_callback(ReportCallback())

    A report has the latest value of every logged metric, with `step` and `epoch`. A step that both logs and saves makes
    one report. The checkpoint is a directory with the trainer's own in `checkpoint/`, for
    `trainer.train(resume_from_checkpoint=...)`. `checkpoint_upload_mode` is passed to `train.report`.
    """

    CHECKPOINT_NAME: ClassVar[str] = "checkpoint"

    def __init__(self, checkpoint_upload_mode: CheckpointUploadMode = CheckpointUploadMode.SYNC) -> None:
        self._mode = CheckpointUploadMode(checkpoint_upload_mode)
        self._metrics: dict[str, Any] = {}

    def on_log(self, args: Any, state: Any, control: Any, logs: dict[str, Any] | None = None, **kwargs: Any) -> None:
        self._metrics.update(logs or {})
        self._metrics.update(step=state.global_step, epoch=state.epoch)
        if not control.should_save:
            report(dict(self._metrics))

    def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._metrics.update(step=state.global_step, epoch=state.epoch)
        saved = Path(args.output_dir) / f"{PREFIX_CHECKPOINT_DIR}-{state.global_step}"
        # Wait until all ranks have written their files.
        collective.barrier()
        with account_time(CHECKPOINT):
            checkpoint = self._copy_own_files(saved, _require_context("ReportCallback").begin)
        report(dict(self._metrics), checkpoint=checkpoint, checkpoint_upload_mode=self._mode)

    def _copy_own_files(self, saved: Path, begin: WorkerInit) -> Checkpoint | None:
        """Copy the files this rank contributes. A copy, because the trainer deletes or rewrites old checkpoints."""
        rng_state = saved / f"rng_state_{begin.rank}.pth"
        has_own_disk = begin.local_rank == 0 and not (saved / "trainer_state.json").exists()
        directory = staging_directory()
        target = directory / self.CHECKPOINT_NAME
        if begin.rank == 0 or has_own_disk:
            # Each rank contributes its own random state, from whatever node.
            shutil.copytree(saved, target, ignore=shutil.ignore_patterns("rng_state_*.pth"))
        if rng_state.exists():
            target.mkdir(exist_ok=True)
            shutil.copy2(rng_state, target)
        if not target.exists():
            directory.rmdir()
            return None
        return Checkpoint.from_directory(directory)


RayTrainReportCallback = ReportCallback
