"""The configurations of many trials as columns, one per parameter: the input of plots and importances.

A column holds numbers or categories. Parameters with the same value in every trial have no column; a parameter that
only some trials have is a column with gaps.
"""

from __future__ import annotations

import statistics
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from paceline._core.arguments import flatten_dict, is_finite_number
from paceline._core.plain_values import to_printable

_LOG_SPAN = 50
"""Positive numbers with a larger ratio than this, most of them near the low end, get a log scale."""

_LABEL_LENGTH = 28
_MISSING = object()
"""Marks a parameter that a trial does not have."""


@dataclass(frozen=True)
class ParameterColumn:
    name: str
    """Includes the keys of enclosing dicts: `model/width`."""
    kind: Literal["float", "integer", "category"]
    log: bool
    values: tuple[float | int | None, ...]
    """One per trial: the number, or the index of the category; None if the trial does not have it."""
    categories: tuple[str, ...] = ()

    @property
    def present_values(self) -> list[float | int]:
        return [value for value in self.values if value is not None]


def extract_columns(
    configs: Sequence[Mapping[str, Any]], space: Mapping[str, Any] | None = None
) -> list[ParameterColumn]:
    """Return the parameters that differ, in order of appearance. `space`, or the values, decide on log scales."""
    flat = [flatten_dict(config) for config in configs]
    names = list(dict.fromkeys(name for config in flat for name in config))
    logs = find_log_scales(space) if space is not None else {}
    columns = [_build_column(name, [config.get(name, _MISSING) for config in flat], logs.get(name)) for name in names]
    return [column for column in columns if column is not None]


def find_log_scales(space: Mapping[str, Any], prefix: str = "") -> dict[str, bool]:
    """For each domain of a space, by path, whether it is searched on a log scale."""
    scales: dict[str, bool] = {}
    for key, value in space.items():
        name = f"{prefix}{key}"
        if isinstance(log := getattr(value, "log", None), bool):
            scales.setdefault(name, log)
        options = getattr(value, "categories", None)
        inner = [value] if isinstance(value, Mapping) else options if isinstance(options, tuple | list) else []
        for option in inner:
            if isinstance(option, Mapping):
                scales = {**find_log_scales(option, f"{name}/"), **scales}
            elif isinstance(log := getattr(option, "log", None), bool):
                scales.setdefault(name, log)
    return scales


def format_label(value: Any, length: int = _LABEL_LENGTH) -> str:
    """Format a value for display, on one line."""
    if isinstance(value, float):
        return shorten_middle(f"{value:.4g}", length)
    text = value if isinstance(value, str) else getattr(value, "__qualname__", None)
    return shorten_middle(text if isinstance(text, str) else repr(value), length)


def shorten_middle(text: str, length: int = _LABEL_LENGTH) -> str:
    """Shorten a text by cutting its middle, since names differ at their ends."""
    text = "".join(char if char.isprintable() else " " for char in to_printable(text))
    if len(text) <= length:
        return text
    front = (length - 1) // 2
    return f"{text[:front]}…{text[front + 1 - length :]}"


def _build_column(name: str, values: list[Any], log: bool | None) -> ParameterColumn | None:
    present = [value for value in values if value is not _MISSING]
    if all(is_finite_number(value) and abs(value) <= sys.float_info.max for value in present):
        if len({*present}) < 2 and len(present) == len(values):
            return None
        is_integer = all(isinstance(value, int) for value in present)
        numbers = tuple(None if value is _MISSING else value for value in values)
        by_magnitude = min(present) > 0 and (_looks_logarithmic(present) if log is None else log)
        return ParameterColumn(name, "integer" if is_integer else "float", by_magnitude, numbers)
    labels = [None if value is _MISSING else format_label(value) for value in values]
    categories = tuple(sorted({text for text in labels if text is not None}, key=_natural_sort_key))
    if len(categories) < 2 and len(present) == len(values):
        return None
    places = {text: index for index, text in enumerate(categories)}
    return ParameterColumn(name, "category", False, tuple(None if t is None else places[t] for t in labels), categories)


def _looks_logarithmic(values: Sequence[float]) -> bool:
    low, high = min(values), max(values)
    return low > 0 and high / low >= _LOG_SPAN and statistics.median(values) < high / 5


def _natural_sort_key(text: str) -> tuple[int, float, str]:
    try:
        return 0, float(text), text
    except ValueError:
        return 1, 0.0, text
