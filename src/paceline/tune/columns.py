"""The configurations of many trials as columns, one for each parameter: what plots and importances are made from.

A column is of numbers or of categories. Parameters that are the same in every trial are no columns; one that only some
trials have is a column with gaps.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from paceline._core.plain import printable

_LOG_SPAN = 50
"""Positive numbers that span more than this, most of them near the low end, are looked at by magnitude."""

_LABEL_LENGTH = 28


@dataclass(frozen=True)
class Column:
    name: str
    """With the names of the dicts around it: `model/width`."""
    kind: Literal["float", "integer", "category"]
    log: bool
    values: tuple[float | int | None, ...]
    """One for each trial: the number, or the index of the category; None where the trial does not have it."""
    categories: tuple[str, ...] = ()

    @property
    def present(self) -> list[float | int]:
        return [value for value in self.values if value is not None]


def columns(configs: Sequence[Mapping[str, Any]], space: Mapping[str, Any] | None = None) -> list[Column]:
    """The parameters that differ among these configurations, in the order in which they appear.

    With the `space` they were searched in, its domains say which are looked at by magnitude; else the values do.
    """
    flat = [flattened(config) for config in configs]
    names = list(dict.fromkeys(name for config in flat for name in config))
    logs = logarithmic(space) if space is not None else {}
    made = [_column(name, [config.get(name, _GAP) for config in flat], logs.get(name)) for name in names]
    return [column for column in made if column is not None]


def flattened(config: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """A nested configuration by path: `{"a": {"b": 1}}` is `{"a/b": 1}`."""
    flat: dict[str, Any] = {}
    for key, value in config.items():
        name = f"{prefix}{key}"
        if isinstance(value, Mapping) and value:
            flat.update(flattened(value, f"{name}/"))
        else:
            flat[name] = value
    return flat


def logarithmic(space: Mapping[str, Any], prefix: str = "") -> dict[str, bool]:
    """Of each domain of a space, by path, whether it is searched by magnitude."""
    found: dict[str, bool] = {}
    for key, value in space.items():
        name = f"{prefix}{key}"
        if isinstance(log := getattr(value, "log", None), bool):
            found.setdefault(name, log)
        options = getattr(value, "categories", None)
        inner = [value] if isinstance(value, Mapping) else options if isinstance(options, tuple | list) else []
        for option in inner:
            if isinstance(option, Mapping):
                found = {**logarithmic(option, f"{name}/"), **found}
            elif isinstance(log := getattr(option, "log", None), bool):
                found.setdefault(name, log)
    return found


def label(value: Any, length: int = _LABEL_LENGTH) -> str:
    """A value for a person, on one line."""
    if isinstance(value, float):
        text = f"{value:.4g}"
    elif isinstance(value, str):
        text = value
    elif isinstance(name := getattr(value, "__qualname__", None), str):
        text = name
    else:
        text = repr(value)
    return shortened(text, length)


def shortened(text: str, length: int = _LABEL_LENGTH) -> str:
    """A text that fits: its middle is left out, since names differ at their ends."""
    text = "".join(char if char.isprintable() else " " for char in printable(text))
    if len(text) <= length:
        return text
    front = (length - 1) // 2
    return f"{text[:front]}…{text[front + 1 - length :]}"


class _Gap:
    """A trial does not have this parameter."""


_GAP = _Gap()


def _column(name: str, values: list[Any], log: bool | None) -> Column | None:
    present = [value for value in values if value is not _GAP]
    if all(_is_number(value) for value in present):
        if len({*present}) < 2 and len(present) == len(values):
            return None
        whole = all(isinstance(value, int) for value in present)
        numbers = tuple(None if value is _GAP else value for value in values)
        by_magnitude = min(present) > 0 and (_looks_logarithmic(present) if log is None else log)
        return Column(name, "integer" if whole else "float", by_magnitude, numbers)
    labels = [None if value is _GAP else label(value) for value in values]
    categories = tuple(sorted({text for text in labels if text is not None}, key=_natural))
    if len(categories) < 2 and len(present) == len(values):
        return None
    places = {text: index for index, text in enumerate(categories)}
    return Column(name, "category", False, tuple(None if t is None else places[t] for t in labels), categories)


def _is_number(value: Any) -> bool:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    try:
        return math.isfinite(value)
    except OverflowError:
        return False


def _looks_logarithmic(values: Sequence[float]) -> bool:
    low, high = min(values), max(values)
    return low > 0 and high / low >= _LOG_SPAN and statistics.median(values) < high / 5


def _natural(text: str) -> tuple[int, float, str]:
    try:
        return 0, float(text), text
    except ValueError:
        return 1, 0.0, text
