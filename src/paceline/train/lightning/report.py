"""The callbacks that report Lightning's metrics, with a checkpoint that Lightning can resume from."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Literal, cast

from paceline._core.arguments import bad_value, check_choice, check_file_name, join_or, parse_metric_names
from paceline._core.time_accounting import CHECKPOINT, REPORT, account_time
from paceline.train.checkpoint import Checkpoint
from paceline.train.driver.validation import ValidationTaskConfig
from paceline.train.session import CheckpointUploadMode, _require_context, report, staging_directory

MOMENTS = ("train_epoch_end", "validation_end")


class ReportCallbackMixin:
    """Reports `trainer.callback_metrics` with a checkpoint at the end of every training epoch.

        Trainer(callbacks=[ReportCallback()], strategy=PacelineDDPStrategy(), enable_checkpointing=False)

    The checkpoint is a directory with `checkpoint.ckpt`, written by `trainer.save_checkpoint`; resume with
    `trainer.fit(model, ckpt_path=...)`. The metrics include `epoch` and `step`. `on="validation_end"` reports after
    each validation instead. `checkpoint_upload_mode` and `validation` are passed to `train.report`.
    """

    CHECKPOINT_NAME: ClassVar[str] = "checkpoint.ckpt"
    last_callback_class: ClassVar[type]
    """Lightning's base class for callbacks that run after the model's own hook, and so see what it logs."""

    def __init__(
        self,
        on: Literal["train_epoch_end", "validation_end"] = "train_epoch_end",
        checkpoint_upload_mode: CheckpointUploadMode | None = None,
        validation: bool | ValidationTaskConfig = False,
    ) -> None:
        check_choice("on", on, MOMENTS)
        super().__init__()
        self._on = on
        self._mode = CheckpointUploadMode(checkpoint_upload_mode or CheckpointUploadMode.SYNC)
        self._validation = validation

    def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:
        # Not earlier: a trainer with enable_checkpointing=False rejects callbacks of this class.
        cls: Any = type(self)
        self.__class__ = _add_base(cls, self.last_callback_class)
        # Run after the user's callbacks of this class, so that the checkpoint has their current state.
        trainer.callbacks = [*(one for one in trainer.callbacks if one is not self), self]
        super().setup(trainer, pl_module, stage)  # type: ignore[misc]

    def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        if self._on == "train_epoch_end":
            self._report(trainer)

    def on_validation_end(self, trainer: Any, pl_module: Any) -> None:
        # Skips the sanity check before training and `trainer.validate()`.
        if self._on == "validation_end" and trainer.state.fn == "fit" and not trainer.sanity_checking:
            self._report(trainer)

    def _report(self, trainer: Any) -> None:
        metrics = {
            **{name: to_plain_number(value) for name, value in trainer.callback_metrics.items()},
            "epoch": trainer.current_epoch,
            "step": trainer.global_step,
        }
        with account_time(CHECKPOINT):
            checkpoint = self._save_checkpoint(trainer)
            # Rank 0 has a checkpoint, and its request counts.
            validation = self._validation if checkpoint is not None else False
            report(metrics, checkpoint=checkpoint, checkpoint_upload_mode=self._mode, validation=validation)

    def _save_checkpoint(self, trainer: Any) -> Checkpoint | None:
        """Save on all ranks into rank 0's directory, and return what this rank contributes."""
        begin = _require_context("ReportCallback").begin
        strategy = trainer.strategy
        directory = Path(strategy.broadcast(str(staging_directory()) if begin.rank == 0 else ""))
        contributes = begin.rank == 0
        if begin.num_nodes > 1:
            # If the directory exists here, it is shared and rank 0 sees our files. (All ranks write shards.)
            contributes = contributes or (begin.local_rank == 0 and not directory.exists())
            strategy.barrier()
        trainer.save_checkpoint(directory / self.CHECKPOINT_NAME, weights_only=False)
        return Checkpoint.from_directory(directory) if contributes and directory.exists() else None


@functools.cache
def _add_base(cls: Any, kind: type) -> Any:
    return cls if issubclass(cls, kind) else type(cls.__name__, (cls, kind), {"__module__": cls.__module__})


def to_plain_number(value: Any) -> Any:
    """Convert a metric to a plain number; a tensor with several elements to a list."""
    return value.tolist() if hasattr(value, "tolist") else value


class TuneReportCallbackMixin(ReportCallbackMixin):
    """Reports metrics logged by Lightning, with a checkpoint, after each validation.

        Trainer(callbacks=[TuneReportCheckpointCallback({"loss": "val_loss"})], enable_checkpointing=False)

    `metrics`: a name, a list of names, or a dict from reported name to Lightning's name; None reports all. The
    checkpoint is a directory with `filename`, written by `trainer.save_checkpoint`; `save_checkpoints=False` disables
    it. `on` is `"validation_end"` or `"train_epoch_end"`. Metrics that do not exist yet, such as before the first
    validation, are omitted; without any there is no report.
    """

    def __init__(
        self,
        metrics: str | Sequence[str] | Mapping[str, str] | None = None,
        filename: str = "checkpoint",
        save_checkpoints: bool = True,
        on: Any = "validation_end",
    ) -> None:
        moments = [on] if isinstance(on, str) else list(on)
        if len(moments) != 1 or moments[0] not in MOMENTS:
            raise bad_value("on", join_or(map(repr, MOMENTS)), on)
        super().__init__(on=cast(Literal["train_epoch_end", "validation_end"], moments[0]))
        self._names = parse_metric_names("metrics", metrics)
        self.CHECKPOINT_NAME = check_file_name("filename", filename)  # type: ignore[misc]
        self._save_checkpoints = save_checkpoints

    def _report(self, trainer: Any) -> None:
        metrics = {name: to_plain_number(value) for name, value in trainer.callback_metrics.items()}
        if self._names is not None:
            metrics = {name: metrics[original] for name, original in self._names.items() if original in metrics}
        if metrics:
            with account_time(CHECKPOINT if self._save_checkpoints else REPORT):
                report(metrics, checkpoint=self._save_checkpoint(trainer) if self._save_checkpoints else None)


class WithoutCheckpointsMixin:
    """Put in front of a class with `TuneReportCallbackMixin`."""

    def __init__(self, metrics: Any = None, on: Any = "validation_end") -> None:
        super().__init__(metrics, save_checkpoints=False, on=on)  # type: ignore[call-arg]


_EVENTS = (
    *(f"{phase}_{when}" for phase in ("fit", "train", "validation", "test", "predict") for when in ("start", "end")),
    *(f"{phase}_epoch_{when}" for phase in ("train", "validation", "test", "predict") for when in ("start", "end")),
    *(f"{phase}_batch_{when}" for phase in ("train", "validation", "test", "predict") for when in ("start", "end")),
    *("sanity_check_start", "sanity_check_end", "before_backward", "after_backward", "before_optimizer_step"),
    *("before_zero_grad", "exception", "save_checkpoint", "load_checkpoint"),
)


class TuneCallbackMixin:
    """Subclass this and implement `_handle(trainer, pl_module)`, which is called at each event of `on`.

    Events are Lightning's hooks without `on_`: "validation_end", "train_epoch_end" and so on; one, or a list.
    """

    def __init__(self, on: str | Sequence[str] = "validation_end") -> None:
        super().__init__()
        self._on = (on,) if isinstance(on, str) else tuple(on)
        for event in self._on:
            if event not in _EVENTS:
                raise bad_value("on", f"one of {', '.join(_EVENTS)}", event)

    def _handle(self, trainer: Any, pl_module: Any) -> None:
        raise NotImplementedError(f"{type(self).__name__} must implement _handle(trainer, pl_module)")


def _make_hook(event: str) -> Any:
    def hook(self: TuneCallbackMixin, trainer: Any, pl_module: Any = None, *args: Any, **info: Any) -> None:
        if event in self._on:
            self._handle(trainer, pl_module)

    hook.__name__ = f"on_{event}"
    return hook


for _event in _EVENTS:
    setattr(TuneCallbackMixin, f"on_{_event}", _make_hook(_event))
