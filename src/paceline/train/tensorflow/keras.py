"""Keras callbacks that report: for models of Keras 3 and of tf_keras.

Keras is imported when a callback is made, not with this module.
"""

from __future__ import annotations

import functools
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from paceline._core.spending import CHECKPOINT, REPORT, spent
from paceline.train.session import get_context, report
from paceline.train.tensorflow.checkpoint import TensorflowCheckpoint

__all__ = ["ReportCheckpointCallback"]

_EVENTS = (
    *(f"{what}_{when}" for what in ("epoch", "train", "test", "predict") for when in ("begin", "end")),
    *(f"{what}_batch_{when}" for what in ("train", "test", "predict") for when in ("begin", "end")),
)


class ReportCheckpointCallback:
    """Reports what Keras logs, and the model as a checkpoint: `model.fit(..., callbacks=[ReportCheckpointCallback()])`.

    The events are Keras' hooks without `on_`: "epoch_end", "train_batch_end" ... `metrics` says which logs are
    reported: a list of their names, or a dict of the names they get to their names in Keras; None: all. A checkpoint
    goes with the metrics, whatever `report_metrics_on` says. It is the model of rank 0; with a strategy over several
    workers all of them take part in saving it.
    """

    def __new__(cls, *args: Any, **kwargs: Any) -> ReportCheckpointCallback:
        asked = _asked(*args, **kwargs) if cls.__init__ is ReportCheckpointCallback.__init__ else _EVENTS
        subclass: Any = cls
        made: ReportCheckpointCallback = object.__new__(_with_hooks(subclass, _callback(), asked))
        return made

    def __init__(
        self,
        checkpoint_on: str | Sequence[str] = "epoch_end",
        report_metrics_on: str | Sequence[str] = "epoch_end",
        metrics: str | Sequence[str] | Mapping[str, str] | None = None,
    ) -> None:
        super().__init__()
        self._checkpoint_on = _named("checkpoint_on", checkpoint_on)
        self._report_on = _named("report_metrics_on", report_metrics_on)
        self._metrics = _picked(metrics)

    def _happened(self, event: str, logs: Mapping[str, Any]) -> None:
        saves = event in self._checkpoint_on
        if saves or event in self._report_on:
            with spent(CHECKPOINT if saves else REPORT):
                report(self._reported(logs), checkpoint=_saved(self.model) if saves else None)  # type: ignore[attr-defined]

    def _reported(self, logs: Mapping[str, Any]) -> dict[str, Any]:
        if self._metrics is None:
            return dict(logs)
        missing = [name for name in self._metrics.values() if name not in logs]
        if missing:
            raise ValueError(
                f"metrics names {missing[0]!r}, and Keras has logged {', '.join(map(repr, logs)) or 'nothing'}"
            )
        return {ours: logs[theirs] for ours, theirs in self._metrics.items()}


def _asked(
    checkpoint_on: str | Sequence[str] = "epoch_end",
    report_metrics_on: str | Sequence[str] = "epoch_end",
    metrics: Any = None,
) -> tuple[str, ...]:
    """All events at which something is done."""
    named = {*_named("checkpoint_on", checkpoint_on), *_named("report_metrics_on", report_metrics_on)}
    return tuple(event for event in _EVENTS if event in named)


@functools.cache
def _with_hooks(cls: Any, callback: Any, events: tuple[str, ...]) -> type:
    """The class as a Keras callback. It has the hooks that are asked for only: Keras does less work between batches."""
    hooks = type("Hooks", (), {f"on_{event}": _hook(event) for event in events})
    return type(cls.__name__, (cls, hooks, callback), {"__module__": cls.__module__, "__doc__": cls.__doc__})


def _hook(event: str) -> Any:
    def hook(self: ReportCheckpointCallback, *args: Any, logs: Mapping[str, Any] | None = None) -> None:
        # An epoch or a batch comes first, where there is one.
        given = logs if logs is not None else next((each for each in args if isinstance(each, Mapping)), {})
        self._happened(event, given)

    return hook


def _callback() -> type:
    """What Keras takes for a callback. That of tf_keras, where it is in use, does for Keras 3 as well."""
    import tensorflow as tf

    keras = sys.modules.get("tf_keras") or tf.keras
    callback: type = keras.callbacks.Callback
    return callback


def _saved(model: Any) -> TensorflowCheckpoint | None:
    context = get_context()
    if context.get_world_rank() == 0:
        return TensorflowCheckpoint.from_model(model)
    strategy = getattr(model, "distribute_strategy", None)
    if strategy is not None and strategy.num_replicas_in_sync > 1:
        # Reading a variable that is kept apart on each worker is a collective: rank 0 would wait for us.
        with tempfile.TemporaryDirectory(prefix="paceline-unused-") as directory:
            model.save(Path(directory) / TensorflowCheckpoint.MODEL_FILENAME)
    return None


def _named(argument: str, events: str | Sequence[str]) -> tuple[str, ...]:
    named = (events,) if isinstance(events, str) else tuple(events)
    for event in named:
        if event not in _EVENTS:
            raise ValueError(f"{argument}={event!r} is not one of {', '.join(_EVENTS)}")
    return named


def _picked(metrics: str | Sequence[str] | Mapping[str, str] | None) -> dict[str, str] | None:
    if metrics is None:
        return None
    if isinstance(metrics, Mapping):
        return dict(metrics)
    names = [metrics] if isinstance(metrics, str) else list(metrics)
    if not all(isinstance(name, str) for name in names):
        raise ValueError(f"metrics={metrics!r} is not a name, a list of names, or a dict of names")
    return {name: name for name in names}
