"""Keras callbacks that report, for Keras 3 and tf_keras.

Keras is imported when a callback is created, not with this module.
"""

from __future__ import annotations

import functools
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from paceline._core.arguments import bad_value, parse_metric_names
from paceline._core.lazy_imports import explain_module
from paceline._core.time_accounting import CHECKPOINT, REPORT, account_time
from paceline.train.session import get_context, report
from paceline.train.tensorflow.checkpoint import TensorflowCheckpoint

__all__ = ["ReportCheckpointCallback"]

_EVENTS = (
    *(f"{phase}_{when}" for phase in ("epoch", "train", "test", "predict") for when in ("begin", "end")),
    *(f"{phase}_batch_{when}" for phase in ("train", "test", "predict") for when in ("begin", "end")),
)


class ReportCheckpointCallback:
    """Reports Keras logs, and the model as a checkpoint: `model.fit(..., callbacks=[ReportCheckpointCallback()])`.

    Events are Keras hooks without `on_`: "epoch_end", "train_batch_end" and so on. `metrics` selects the logs to
    report: a list of names, or a dict from reported name to name in Keras; None reports all. A checkpoint is always
    reported with metrics, whatever `report_metrics_on` is. It is the model of rank 0; with a strategy over several
    workers, all of them take part in saving.
    """

    def __new__(cls, *args: Any, **kwargs: Any) -> ReportCheckpointCallback:
        events = _requested_events(*args, **kwargs) if cls.__init__ is ReportCheckpointCallback.__init__ else _EVENTS
        subclass: Any = cls
        callback: ReportCheckpointCallback = object.__new__(_with_hooks(subclass, _keras_callback_class(), events))
        return callback

    def __init__(
        self,
        checkpoint_on: str | Sequence[str] = "epoch_end",
        report_metrics_on: str | Sequence[str] = "epoch_end",
        metrics: str | Sequence[str] | Mapping[str, str] | None = None,
    ) -> None:
        super().__init__()
        self._checkpoint_on = _check_events("checkpoint_on", checkpoint_on)
        self._report_on = _check_events("report_metrics_on", report_metrics_on)
        self._metrics = parse_metric_names("metrics", metrics)

    def _on_event(self, event: str, logs: Mapping[str, Any]) -> None:
        saves = self._should_save(event)
        if saves or event in self._report_on:
            with account_time(CHECKPOINT if saves else REPORT):
                report(self._select_metrics(logs), checkpoint=_save_model(self.model) if saves else None)  # type: ignore[attr-defined]

    def _should_save(self, event: str) -> bool:
        """Whether this event, which just happened, makes a checkpoint."""
        return event in self._checkpoint_on

    def _select_metrics(self, logs: Mapping[str, Any]) -> dict[str, Any]:
        if self._metrics is None:
            return dict(logs)
        missing = [name for name in self._metrics.values() if name not in logs]
        if missing:
            raise ValueError(f"unknown metric {missing[0]!r}; Keras has logged {', '.join(map(repr, logs)) or 'none'}")
        return {name: logs[original] for name, original in self._metrics.items()}


def _requested_events(
    checkpoint_on: str | Sequence[str] = "epoch_end",
    report_metrics_on: str | Sequence[str] = "epoch_end",
    metrics: Any = None,
) -> tuple[str, ...]:
    named = {*_check_events("checkpoint_on", checkpoint_on), *_check_events("report_metrics_on", report_metrics_on)}
    return tuple(event for event in _EVENTS if event in named)


@functools.cache
def _with_hooks(cls: Any, callback: Any, events: tuple[str, ...]) -> type:
    """Make the class a Keras callback with only the requested hooks, so that Keras does less work between batches."""
    hooks = type("Hooks", (), {f"on_{event}": _make_hook(event) for event in events})
    return type(cls.__name__, (cls, hooks, callback), {"__module__": cls.__module__, "__doc__": cls.__doc__})


def _make_hook(event: str) -> Any:
    def hook(self: ReportCheckpointCallback, *args: Any, logs: Mapping[str, Any] | None = None) -> None:
        # The first argument is the epoch or batch, if there is one.
        event_logs = logs if logs is not None else next((each for each in args if isinstance(each, Mapping)), {})
        self._on_event(event, event_logs)

    return hook


def _keras_callback_class() -> type:
    """Return the base class of Keras callbacks. If tf_keras is in use, its class also works for Keras 3."""
    import tensorflow as tf

    keras = sys.modules.get("tf_keras") or tf.keras
    callback: type = keras.callbacks.Callback
    return callback


def _save_model(model: Any) -> TensorflowCheckpoint | None:
    context = get_context()
    if context.get_world_rank() == 0:
        return TensorflowCheckpoint.from_model(model)
    strategy = getattr(model, "distribute_strategy", None)
    if strategy is not None and strategy.num_replicas_in_sync > 1:
        # Reading a variable that each worker keeps separately is a collective: rank 0 would wait for us.
        with tempfile.TemporaryDirectory(prefix="paceline-unused-") as directory:
            model.save(Path(directory) / TensorflowCheckpoint.MODEL_FILENAME)
    return None


def _check_events(argument: str, events: str | Sequence[str]) -> tuple[str, ...]:
    named = (events,) if isinstance(events, str) else tuple(events)
    for event in named:
        if event not in _EVENTS:
            raise bad_value(argument, f"one of {', '.join(_EVENTS)}", event)
    return named


explain_module(__name__)
