"""Converts batches to the tensors and arrays of each framework."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Any


def import_framework(name: str) -> Any:
    """Import the framework of some batches: `torch`, `JAX` or `TensorFlow`."""
    module = name.lower()
    try:
        return importlib.import_module(module)
    except ImportError:
        raise ImportError(f'{name} batches need {module}\n\nhint: pip install "paceline[{module}]"') from None


def dtype_of(dtypes: Any, column: str) -> Any:
    """Return the dtype requested for a column: `dtypes` applies to all columns, or to those it names."""
    return dtypes.get(column) if isinstance(dtypes, Mapping) else dtypes
