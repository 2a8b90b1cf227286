"""Convert dataset rows for tree libraries: one feature matrix with names, and the labels.

A column of categories becomes a feature whose values are indices into a list of categories. Each worker sees only its
rows, so `merge_categories` makes one list for all.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pyarrow as pa

from paceline._core.lazy_imports import import_extra
from paceline.data.block import Block

Categories = Mapping[str, Sequence[Any]]
"""Feature -> its categories, which are texts or numbers."""


@dataclass(frozen=True, eq=False)
class FeatureTable:
    """Feature matrix, feature names, and one label per row."""

    features: np.ndarray[Any, Any]
    names: tuple[str, ...]
    labels: np.ndarray[Any, Any]
    categories: Categories = field(default_factory=dict)
    """The matrix holds the index of a category; nan if it is missing."""

    def recode(self, categories: Categories) -> FeatureTable:
        """Return the table with indices into other categories, which include its own."""
        if not self.categories:
            return self
        features = self.features.copy()
        for name, own in self.categories.items():
            places = {category: index for index, category in enumerate(categories[name])}
            column = features[:, self.names.index(name)]
            known = ~np.isnan(column)
            column[known] = np.array([places[category] for category in own])[column[known].astype(np.int64)]
        return replace(self, features=features, categories={name: categories[name] for name in self.categories})

    def to_library(self) -> Any:
        """Return the matrix or, if there are categories, a DataFrame: from one the model learns their names."""
        if not self.categories:
            return self.features
        pandas = import_extra("pandas", "a column of categories")
        frame = pandas.DataFrame(self.features, columns=list(self.names))
        for name, categories in self.categories.items():
            codes = np.nan_to_num(frame[name].to_numpy(), nan=-1).astype(np.int64)
            frame[name] = pandas.Categorical.from_codes(codes, categories=list(categories))
        return frame


def merge_categories(known: Categories, found: Iterable[Categories]) -> dict[str, list[Any]]:
    """Return the known categories, then all others in sorted order: the same for any number of workers."""
    merged = {name: dict.fromkeys(categories) for name, categories in known.items()}
    others: dict[str, set[Any]] = {}
    for each in found:
        for name, categories in each.items():
            others.setdefault(name, set()).update(categories)
    for name, seen in others.items():
        before = merged.setdefault(name, {})
        before.update(dict.fromkeys(sorted(seen - before.keys())))
    return {name: list(categories) for name, categories in merged.items()}


def to_columns(table: Any) -> dict[str, Any]:
    """Return the columns of an Arrow table: arrays, and columns of categories as they are."""
    columns = Block.from_arrow(table).to_numpy()
    return {name: table[name] if pa.types.is_dictionary(table[name].type) else columns[name] for name in columns}


def make_table(batches: Iterable[Mapping[str, Any]], label_column: str, owner: str) -> FeatureTable:
    """Combine all rows of the batches. `owner` names them in errors about missing rows or non-numeric values."""
    matrices: list[np.ndarray[Any, Any]] = []
    labels: list[np.ndarray[Any, Any]] = []
    names: tuple[str, ...] = ()
    codes: dict[str, dict[Any, int]] = {}
    for batch in batches:
        if label_column not in batch:
            raise KeyError(
                f"{owner} has no label_column {label_column!r}; the columns are {', '.join(map(repr, batch))}"
            )
        columns = [name for name in batch if name != label_column]
        if not columns:
            raise ValueError(f"{owner} has only the label_column {label_column!r}, and no features")
        matrix, names = make_matrix(batch, columns, owner, codes)
        if len(matrix):
            matrices.append(matrix)
            labels.append(_check_numeric(batch[label_column], label_column, owner))
    if not matrices:
        raise ValueError(
            f"{owner} has no rows: every worker needs some of each dataset\n\n"
            "hint: use fewer workers or more rows; if rows are filtered, check dataset.count()"
        )
    return FeatureTable(
        np.concatenate(matrices), names, np.concatenate(labels), {name: list(codes[name]) for name in codes}
    )


def make_matrix(
    batch: Mapping[str, Any], columns: Sequence[str], owner: str, codes: dict[str, dict[Any, int]] | None = None
) -> tuple[np.ndarray[Any, Any], tuple[str, ...]]:
    """Return columns of a batch as a matrix with feature names; an array column has one feature per element.

    `codes` is the index of each category of a feature; the categories of Arrow columns are added to it.
    """
    codes = {} if codes is None else codes
    parts, names = [], []
    for column in columns:
        values = batch[column]
        if isinstance(values, pa.ChunkedArray):
            values = _encode_categories(values, codes.setdefault(column, {}), column, owner)
        elif column in codes:
            found = codes[column]
            values = np.array([found.get(value, np.nan) for value in np.asarray(values).tolist()], np.float32)
        else:
            values = _check_numeric(values, column, owner)
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


def _encode_categories(values: Any, codes: dict[Any, int], column: str, owner: str) -> np.ndarray[Any, Any]:
    parts = [np.zeros(0, np.float32)]
    for chunk in values.chunks:
        categories = chunk.dictionary.to_pylist()
        for category in categories:
            if not isinstance(category, str | int | float):
                raise ValueError(
                    f"{owner}: the categories of the column {column!r} must be texts or numbers, got {category!r}"
                )
        # The last one is for rows without a category.
        places = np.array([*(codes.setdefault(category, len(codes)) for category in categories), np.nan], np.float32)
        parts.append(places[chunk.indices.fill_null(-1).to_numpy(zero_copy_only=False)])
    return np.concatenate(parts)


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
