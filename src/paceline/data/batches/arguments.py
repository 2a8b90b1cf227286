"""Argument checks of the `iter_*` methods. Errors are raised immediately and say what is allowed."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, get_args

from paceline.data.block import BatchFormat

FORMATS = ("default", *get_args(BatchFormat))


class DefaultBatchSize:
    """Default of `batch_size`: tells an omitted argument from None."""

    def __repr__(self) -> str:
        return "256"


DEFAULT = DefaultBatchSize()
DEFAULT_BATCH_SIZE = 256


def check_integer(name: str, value: Any, least: int, *, or_none: bool = False) -> None:
    if value is None and or_none:
        return
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        allowed = f"a whole number of {least} or more{', or None' if or_none else ''}"
        raise ValueError(f"{name}={value!r} is not {allowed}")


def check_seed(value: Any) -> None:
    if value is not None and (isinstance(value, bool) or not isinstance(value, int)):
        raise ValueError(f"local_shuffle_seed={value!r} is not a whole number, or None")


def check_flag(name: str, value: Any) -> None:
    if not isinstance(value, bool):
        raise ValueError(f"{name}={value!r} is not True or False")


def check_function(name: str, value: Any) -> None:
    if value is not None and not callable(value):
        raise ValueError(f"{name}={value!r} is not a function, or None")


def check_format(value: Any) -> BatchFormat:
    if value not in FORMATS:
        raise ValueError(f"batch_format={value!r} is not one of {', '.join(map(repr, FORMATS))}")
    found: BatchFormat = "numpy" if value == "default" else value
    return found


def check_columns(name: str, columns: Iterable[str], known: Iterable[str]) -> None:
    known = list(known)
    for column in columns:
        if column not in known:
            shown = ", ".join(map(repr, known)) or "none"
            raise ValueError(f"{name} names the column {column!r}, but the columns are: {shown}")
