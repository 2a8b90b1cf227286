"""The callback that reports what a Transformers trainer logs and saves."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from transformers.trainer_callback import TrainerCallback
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR

from paceline._core.spending import CHECKPOINT, spent
from paceline.train import collective
from paceline.train.checkpoint import Checkpoint
from paceline.train.session import CheckpointUploadMode, _context, report, staging_directory

if TYPE_CHECKING:
    from paceline._engine.messages import Begin


class ReportCallback(TrainerCallback):  # type: ignore[misc]
    """Reports metrics when the trainer logs them, and a checkpoint when it saves one.

        trainer.add_callback(ReportCallback())

    A report has the newest value of everything that was logged so far, with `step` and `epoch`. What is logged in a
    step that is saved as well makes one report, with the checkpoint: a directory with the trainer's own in
    `checkpoint/`, from which `trainer.train(resume_from_checkpoint=...)` goes on. `checkpoint_upload_mode` is that of
    `train.report`.
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
        # Nobody takes the files before all have written theirs.
        collective.barrier()
        with spent(CHECKPOINT):
            checkpoint = self._brought(saved, _context("ReportCallback").begin)
        report(dict(self._metrics), checkpoint=checkpoint, checkpoint_upload_mode=self._mode)

    def _brought(self, saved: Path, begin: Begin) -> Checkpoint | None:
        """The files that this rank adds. A copy: the trainer deletes old checkpoints, and may write them once more."""
        own = saved / f"rng_state_{begin.rank}.pth"
        on_its_own_disk = begin.local_rank == 0 and not (saved / "trainer_state.json").exists()
        directory = staging_directory()
        target = directory / self.CHECKPOINT_NAME
        if begin.rank == 0 or on_its_own_disk:
            # Random states are brought by the ranks that they are of, from whatever machine.
            shutil.copytree(saved, target, ignore=shutil.ignore_patterns("rng_state_*.pth"))
        if own.exists():
            target.mkdir(exist_ok=True)
            shutil.copy2(own, target)
        if not target.exists():
            directory.rmdir()
            return None
        return Checkpoint.from_directory(directory)


RayTrainReportCallback = ReportCallback
