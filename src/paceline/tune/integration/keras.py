"""Keras in a trial: `model.fit(..., callbacks=[TuneReportCheckpointCallback({"loss": "val_loss"})])`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from paceline._core.arguments import bad_value, check_int
from paceline._core.lazy_imports import explain_module
from paceline.train.tensorflow.keras import ReportCheckpointCallback

__all__ = ["TuneReportCallback", "TuneReportCheckpointCallback"]

Metrics = str | Sequence[str] | Mapping[str, str] | None


class TuneReportCheckpointCallback(ReportCheckpointCallback):
    """Reports Keras logs at each event of `on`, and the model as a checkpoint at every `frequency`-th.

    The model is in a `TensorflowCheckpoint`: `TensorflowCheckpoint.from_checkpoint(...).get_model()` loads it.
    """

    def __init__(
        self,
        metrics: Metrics = None,
        filename: str = "checkpoint",
        frequency: int | Sequence[int] = 1,
        on: str | Sequence[str] = "epoch_end",
    ) -> None:
        super().__init__(checkpoint_on=on, report_metrics_on=on, metrics=metrics)
        if filename != "checkpoint":
            hint = "load the model with TensorflowCheckpoint.get_model()"
            raise bad_value("filename", "'checkpoint': Keras names the file by its format", filename, hint)
        events = self._checkpoint_on
        frequencies = [frequency] * len(events) if isinstance(frequency, int) else list(frequency)
        if len(frequencies) != len(events):
            raise bad_value("frequency", f"an integer, or one for each event of on ({', '.join(events)})", frequency)
        for each in frequencies:
            check_int("frequency", each, at_least=1)
        self._frequencies = dict(zip(events, frequencies, strict=True))
        self._num_events: Counter[str] = Counter()

    def _should_save(self, event: str) -> bool:
        if event not in self._frequencies:
            return False
        self._num_events[event] += 1
        return self._num_events[event] % self._frequencies[event] == 0


class TuneReportCallback(ReportCheckpointCallback):
    """Reports Keras logs at each event of `on`, without checkpoints."""

    def __init__(self, metrics: Metrics = None, on: str | Sequence[str] = "epoch_end") -> None:
        super().__init__(checkpoint_on=(), report_metrics_on=on, metrics=metrics)


explain_module(__name__)
