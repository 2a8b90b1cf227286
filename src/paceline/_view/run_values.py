"""Converts a run to shown values: its state as a word, plain metrics, and the best metric. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import msgspec

from paceline._control.events import Retention
from paceline._control.run import BackingOff, Finished, Run, Running, Stopping, Validating, Waiting
from paceline._view.journal.report_table import ReportTable
from paceline._view.model import BestMetric, State, Value

_LESS_IS_BETTER = ("loss", "error", "perplexity", "ppl", "rmse", "mae", "mse")
_MORE_IS_BETTER = ("accuracy", "acc", "score", "f1", "auc")
_VALIDATION = ("val", "valid", "validation", "eval", "test")
_MAX_LIST_CHARS = 1000


def display_state(run: Run, *, is_held: bool) -> State:
    phase = run.phase
    if isinstance(phase, Finished):
        states: dict[str, State] = {"complete": "finished", "failed": "failed", "preempted": "preempted"}
        return states.get(phase.ending, "stopped")
    if not is_held:
        return "lost"
    match phase:
        case BackingOff() | Waiting():
            return "waiting"
        case Validating():
            return "validating"
        case Running(held_counts=None, is_draining=False):
            return "starting" if phase.num_ready < run.size else "running"
        case Running() | Stopping():
            return "stopping"
    return "starting"


def to_json_value(metric: Any) -> Value:
    """Convert a metric to a JSON value: nan and infinity become text, a list becomes its JSON text."""
    if isinstance(metric, float):
        return metric if math.isfinite(metric) else str(metric)
    if metric is None or isinstance(metric, bool | str):
        return metric
    if isinstance(metric, int):
        return metric if -(1 << 63) <= metric < 1 << 63 else str(metric) if metric.bit_length() < 2000 else hex(metric)
    text = msgspec.json.encode(metric).decode()
    return text if len(text) <= _MAX_LIST_CHARS else f"{text[:_MAX_LIST_CHARS]}..."


def to_finite(number: float) -> float | None:
    """Convert to a float; None if it is not finite, or too large for one."""
    try:
        value = float(number)
    except OverflowError:
        return None
    return value if math.isfinite(value) else None


def to_json_values(metrics: Mapping[str, Any]) -> dict[str, Value]:
    return {name: to_json_value(metric) for name, metric in metrics.items()}


def choose_metric(names: Sequence[str], retention: Retention) -> tuple[str, Literal["min", "max"]] | None:
    """Choose the metric to compare runs by: that which checkpoints are kept by, else one whose name implies a mode."""
    if retention.score_attribute is not None and retention.score_attribute in names:
        return retention.score_attribute, "min" if retention.score_order == "min" else "max"
    for words, mode in ((("loss",), "min"), (_MORE_IS_BETTER, "max"), (_LESS_IS_BETTER, "min")):
        matching = [name for name in names if _has_word(name, words)]
        if matching:
            # A validation metric says more than a training metric.
            of_validation = [name for name in matching if _has_word(name, _VALIDATION)]
            return (of_validation or matching)[0], "min" if mode == "min" else "max"
    return None


def find_best_metric(reports: ReportTable, retention: Retention) -> BestMetric | None:
    choice = choose_metric(reports.numeric_names(), retention)
    if choice is None:
        return None
    name, mode = choice
    column = reports.columns[name]
    at = column.find_best(mode)
    if at is None or not math.isfinite(column.values[at]):
        return None
    return BestMetric(name, mode, column.value_at(at), reports.seqs[column.rows[at]])


def _has_word(name: str, words: tuple[str, ...]) -> bool:
    parts = "".join(letter if letter.isalnum() else " " for letter in name.lower()).split()
    return any(part in words or (word in part and len(word) > 3) for part in parts for word in words)
