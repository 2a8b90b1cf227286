"""Convert dataset rows for tree libraries: one feature matrix with names, and the labels."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np


@dataclass(frozen=True, eq=False)
class FeatureTable:
    """Feature matrix, feature names, and one label per row."""

    features: np.ndarray[Any, Any]
    names: tuple[str, ...]
    labels: np.ndarray[Any, Any]


def make_table(batches: Iterable[Mapping[str, Any]], label_column: str, owner: str) -> FeatureTable:
    """Combine all rows of the batches. `owner` names them in errors about missing rows or non-numeric values."""
    matrices: list[np.ndarray[Any, Any]] = []
    labels: list[np.ndarray[Any, Any]] = []
    names: tuple[str, ...] = ()
    for batch in batches:
        if label_column not in batch:
            raise KeyError(
                f"{owner} has no label_column {label_column!r}; the columns are {', '.join(map(repr, batch))}"
            )
        columns = [name for name in batch if name != label_column]
        if not columns:
            raise ValueError(f"{owner} has only the label_column {label_column!r}, and no features")
        matrix, names = make_matrix(batch, columns, owner)
        if len(matrix):
            matrices.append(matrix)
            labels.append(_check_numeric(batch[label_column], label_column, owner))
    if not matrices:
        raise ValueError(
            f"{owner} has no rows: every worker needs some of each dataset\n\n"
            "hint: use fewer workers or more rows; if rows are filtered, check dataset.count()"
        )
    return FeatureTable(np.concatenate(matrices), names, np.concatenate(labels))


def make_matrix(
    batch: Mapping[str, Any], columns: Sequence[str], owner: str
) -> tuple[np.ndarray[Any, Any], tuple[str, ...]]:
    """Return columns of a batch as a matrix with feature names; an array column has one feature per element."""
    parts, names = [], []
    for column in columns:
        values = _check_numeric(batch[column], column, owner)
        if values.ndim == 1:
            parts.append(values[:, None])
            names.append(column)
        else:
            flat = values.reshape(len(values), math.prod(values.shape[1:]))
            parts.append(flat)
            names.extend(f"{column}_{number}" for number in range(flat.shape[1]))
    # Large integers need float64; small ones and float32 fit in float32, at half the memory.
    dtype = np.result_type(np.float32, *(part.dtype for part in parts))
    return np.concatenate([part.astype(dtype, copy=False) for part in parts], axis=1), tuple(names)


def _check_numeric(values: Any, column: str, owner: str) -> np.ndarray[Any, Any]:
    array = np.asarray(values)
    if array.dtype.kind not in "biuf":
        kind = type(array.reshape(-1)[0]).__name__ if array.dtype.kind == "O" and len(array) else array.dtype
        raise ValueError(
            f"{owner}: the column {column!r} must be numeric, got values of type {kind}\n\n"
            "hint: encode it with paceline.data.preprocessors (OrdinalEncoder, OneHotEncoder), or leave it out with "
            f"dataset.drop_columns({column!r})"
        )
    return array
