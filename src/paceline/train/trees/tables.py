"""Rows of a dataset as what a library of trees takes: one matrix of features with their names, and the labels."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

_NUMBERS = "biuf"
"""The kinds of NumPy's types that are numbers."""


@dataclass(frozen=True, eq=False)
class Table:
    """Features by row and column, their names, and a label for each row."""

    features: np.ndarray[Any, Any]
    names: tuple[str, ...]
    labels: np.ndarray[Any, Any]


def table_of(batches: Iterable[Mapping[str, Any]], label_column: str, who: str) -> Table:
    """All rows of some batches; `who` names whose rows they are where there is none, or where one is no number."""
    matrices: list[np.ndarray[Any, Any]] = []
    labels: list[np.ndarray[Any, Any]] = []
    names: tuple[str, ...] = ()
    for batch in batches:
        if label_column not in batch:
            raise KeyError(
                f"{who} has no column {label_column!r}, which label_column names; there are: "
                f"{', '.join(map(repr, batch))}"
            )
        columns = [name for name in batch if name != label_column]
        if not columns:
            raise ValueError(f"{who} has no column but the labels {label_column!r}: there is nothing to learn from")
        matrix, names = matrix_of(batch, columns, who)
        if len(matrix):
            matrices.append(matrix)
            labels.append(_checked(batch[label_column], label_column, who))
    if not matrices:
        raise ValueError(
            f"{who} has no rows: every worker needs some of each dataset\n\n"
            "hint: use fewer workers, or more rows; where rows are filtered, look at dataset.count()"
        )
    return Table(np.concatenate(matrices), names, np.concatenate(labels))


def matrix_of(
    batch: Mapping[str, Any], columns: Sequence[str], who: str
) -> tuple[np.ndarray[Any, Any], tuple[str, ...]]:
    """Some columns of a batch as a matrix, and the names of its own columns: of an array, one for each element."""
    parts, names = [], []
    for column in columns:
        values = _checked(batch[column], column, who)
        if values.ndim == 1:
            parts.append(values[:, None])
            names.append(column)
        else:
            flat = values.reshape(len(values), math.prod(values.shape[1:]))
            parts.append(flat)
            names.extend(f"{column}_{number}" for number in range(flat.shape[1]))
    # Large whole numbers need the wider type; small ones and float32 do not, and take half the memory.
    dtype = np.result_type(np.float32, *(part.dtype for part in parts))
    return np.concatenate([part.astype(dtype, copy=False) for part in parts], axis=1), tuple(names)


def _checked(values: Any, column: str, who: str) -> np.ndarray[Any, Any]:
    array = np.asarray(values)
    if array.dtype.kind not in _NUMBERS:
        raise ValueError(
            f"{who}: the column {column!r} holds {_told(array)}, and trees are grown from numbers\n\n"
            "hint: encode it with paceline.data.preprocessors (OrdinalEncoder, OneHotEncoder), or leave it out with "
            f"dataset.drop_columns({column!r})"
        )
    return array


def _told(array: np.ndarray[Any, Any]) -> str:
    if array.dtype.kind == "O" and len(array):
        return f"values of type {type(array.reshape(-1)[0]).__name__}"
    return f"values of type {array.dtype}"
