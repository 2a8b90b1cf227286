"""The callback that reports what Lightning logged, with a checkpoint that Lightning can resume from."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any, ClassVar, Literal

from paceline._core.spending import CHECKPOINT, spent
from paceline.train.checkpoint import Checkpoint
from paceline.train.session import CheckpointUploadMode, _context, report, staging_directory

MOMENTS = ("train_epoch_end", "validation_end")


class Reporting:
    """Reports `trainer.callback_metrics` with a checkpoint at the end of every training epoch.

        Trainer(callbacks=[ReportCallback()], strategy=PacelineDDPStrategy(), enable_checkpointing=False)

    The checkpoint is a directory with `checkpoint.ckpt`, made by `trainer.save_checkpoint`; `trainer.fit(model,
    ckpt_path=...)` goes on from it. `epoch` and `step` are among the metrics. `on="validation_end"` reports after each
    validation instead. `checkpoint_upload_mode` is that of `train.report`.
    """

    CHECKPOINT_NAME: ClassVar[str] = "checkpoint.ckpt"
    called_last: ClassVar[type]
    """Lightning's kind of callback that is called after the model's own hook, and so sees what is logged there."""

    def __init__(
        self,
        on: Literal["train_epoch_end", "validation_end"] = "train_epoch_end",
        checkpoint_upload_mode: CheckpointUploadMode = CheckpointUploadMode.SYNC,
    ) -> None:
        if on not in MOMENTS:
            raise ValueError(f"on={on!r} is neither 'train_epoch_end' nor 'validation_end'")
        super().__init__()
        self._on = on
        self._mode = CheckpointUploadMode(checkpoint_upload_mode)

    def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:
        # Not before: to a trainer with enable_checkpointing=False nobody may give a callback of that kind.
        cls: Any = type(self)
        self.__class__ = _of_kind(cls, self.called_last)
        # After those of the user that are of that kind: what they keep has to be in the checkpoint as it is then.
        trainer.callbacks = [*(one for one in trainer.callbacks if one is not self), self]
        super().setup(trainer, pl_module, stage)  # type: ignore[misc]

    def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        if self._on == "train_epoch_end":
            self._report(trainer)

    def on_validation_end(self, trainer: Any, pl_module: Any) -> None:
        # Not the few batches that Lightning tries before training, nor `trainer.validate()`.
        if self._on == "validation_end" and trainer.state.fn == "fit" and not trainer.sanity_checking:
            self._report(trainer)

    def _report(self, trainer: Any) -> None:
        metrics = {
            **{name: plain_number(value) for name, value in trainer.callback_metrics.items()},
            "epoch": trainer.current_epoch,
            "step": trainer.global_step,
        }
        with spent(CHECKPOINT):
            report(metrics, checkpoint=self._saved(trainer), checkpoint_upload_mode=self._mode)

    def _saved(self, trainer: Any) -> Checkpoint | None:
        """Save on all ranks alike, into rank 0's directory, and say what of it this rank brings."""
        begin = _context("ReportCallback").begin
        strategy = trainer.strategy
        directory = Path(strategy.broadcast(str(staging_directory()) if begin.rank == 0 else ""))
        brings = begin.rank == 0
        if begin.num_nodes > 1:
            # Where the directory is there already, rank 0 sees what is written here. (Shards are written by all.)
            brings = brings or (begin.local_rank == 0 and not directory.exists())
            strategy.barrier()
        trainer.save_checkpoint(directory / self.CHECKPOINT_NAME, weights_only=False)
        return Checkpoint.from_directory(directory) if brings and directory.exists() else None


@functools.cache
def _of_kind(cls: Any, kind: type) -> Any:
    return cls if issubclass(cls, kind) else type(cls.__name__, (cls, kind), {"__module__": cls.__module__})


def plain_number(value: Any) -> Any:
    """A metric as a plain number; a tensor with more than one element as a list."""
    if hasattr(value, "tolist"):
        return value.tolist()
    return value
