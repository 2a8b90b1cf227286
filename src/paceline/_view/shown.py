"""From what a run is to what is shown of it: its state in a word, metrics as plain values, the best of them. Pure."""

from __future__ import annotations

import math
from typing import Any, Literal

import msgspec

from paceline._control.events import Retention
from paceline._control.run import Finished, Restoring, Run, Running, Stopping, Unopened, Validating, Waiting
from paceline._view.model import Best, State, Value
from paceline._view.reports import Reports

_LESS_IS_BETTER = ("loss", "error", "perplexity", "ppl", "rmse", "mae", "mse")
_MORE_IS_BETTER = ("accuracy", "acc", "score", "f1", "auc")
_LONGEST = 1000
"""Characters of a list that is a metric."""


def state_of(run: Run, *, is_held: bool) -> State:
    phase = run.phase
    if isinstance(phase, Finished):
        endings: dict[str, State] = {
            "complete": "complete",
            "failed": "failed",
            "interrupted": "stopped",
            "preempted": "preempted",
        }
        return endings.get(phase.ending, "stopped")
    if not is_held:
        return "lost"
    match phase:
        case Unopened() | Restoring():
            return "starting"
        case Waiting():
            return "waiting"
        case Validating():
            return "validating"
        case Stopping():
            return "stopping"
        case Running(held=held) if held is not None:
            return "stopping"
        case Running(num_ready=num_ready) if num_ready < run.size:
            return "starting"
    return "running"


def value_of(metric: Any) -> Value:
    """A metric as a value that JSON has: nan and infinity as text, a list as the JSON that it is."""
    if isinstance(metric, float):
        if math.isfinite(metric):
            return metric
        return "nan" if math.isnan(metric) else ("inf" if metric > 0 else "-inf")
    if metric is None or isinstance(metric, bool | str):
        return metric
    if isinstance(metric, int):
        return metric if -(1 << 63) <= metric < 1 << 63 else str(metric) if metric.bit_length() < 2000 else hex(metric)
    text = msgspec.json.encode(metric).decode()
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}..."


def values_of(metrics: dict[str, Any]) -> dict[str, Value]:
    return {name: value_of(metric) for name, metric in metrics.items()}


def judged_by(names: list[str], retention: Retention) -> tuple[str, Literal["min", "max"]] | None:
    """The metric that runs are compared by, and whether less of it is better: the one that checkpoints are kept by,
    else one whose name tells."""
    if retention.score_attribute is not None and retention.score_attribute in names:
        return retention.score_attribute, "min" if retention.score_order == "min" else "max"
    for words, mode in ((("loss",), "min"), (_MORE_IS_BETTER, "max"), (_LESS_IS_BETTER, "min")):
        found = [name for name in names if _has_word(name, words)]
        if found:
            # That of a validation says more than that of the training.
            of_validation = [name for name in found if _has_word(name, ("val", "valid", "validation", "eval", "test"))]
            return (of_validation or found)[0], "min" if mode == "min" else "max"
    return None


def best_of(reports: Reports, retention: Retention) -> Best | None:
    names = [name for name, column in reports.columns.items() if len(column.rows)]
    judged = judged_by(names, retention)
    if judged is None:
        return None
    name, mode = judged
    column = reports.columns[name]
    at = column.best(mode)
    if at is None or not math.isfinite(column.values[at]):
        return None
    return Best(name, mode, column.value(at), reports.seqs[column.rows[at]])


def _has_word(name: str, words: tuple[str, ...]) -> bool:
    parts = "".join(letter if letter.isalnum() else " " for letter in name.lower()).split()
    return any(part in words or (word in part and len(word) > 3) for part in parts for word in words)
