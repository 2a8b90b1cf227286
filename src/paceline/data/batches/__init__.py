"""Converts batches to the tensors and arrays of each framework."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from paceline._core.lazy_imports import import_extra


def import_framework(name: str) -> Any:
    """Import the framework of some batches: `torch`, `JAX` or `TensorFlow`."""
    return import_extra(name.lower(), f"iterating over {name} batches")


def dtype_of(dtypes: Any, column: str) -> Any:
    """Return the dtype requested for a column: `dtypes` applies to all columns, or to those it names."""
    return dtypes.get(column) if isinstance(dtypes, Mapping) else dtypes
