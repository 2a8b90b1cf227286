"""The callback that reports Lightning's metrics from a trial of a search."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, cast

from paceline._core.time_accounting import CHECKPOINT, REPORT, account_time
from paceline.train.lightning.report import MOMENTS, ReportCallbackMixin, to_plain_number
from paceline.train.session import report


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
            raise ValueError(f"on={on!r} is none of {', '.join(map(repr, MOMENTS))}")
        if not isinstance(filename, str) or not filename or "/" in filename:
            raise ValueError(f"filename={filename!r} is not the name of a file")
        super().__init__(on=cast(Literal["train_epoch_end", "validation_end"], moments[0]))
        names = [metrics] if isinstance(metrics, str) else metrics
        if not isinstance(names, Mapping | Sequence | None):
            raise ValueError(f"metrics={metrics!r} is not a name, a list of names or a dict of them")
        self._names = {name: name for name in names} if isinstance(names, Sequence) else names
        self.CHECKPOINT_NAME = filename  # type: ignore[misc]  # of this object alone
        self._save_checkpoints = save_checkpoints

    def _report(self, trainer: Any) -> None:
        found = {name: to_plain_number(value) for name, value in trainer.callback_metrics.items()}
        if self._names is not None:
            found = {told: found[name] for told, name in self._names.items() if name in found}
        if found:
            with account_time(CHECKPOINT if self._save_checkpoints else REPORT):
                report(found, checkpoint=self._save_checkpoint(trainer) if self._save_checkpoints else None)
