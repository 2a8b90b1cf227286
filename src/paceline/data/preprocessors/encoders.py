"""Encoders: turn categories into numbers, or into vectors of zeros and ones.

Categories are sorted. If `max_categories` limits them, the most frequent come first, and ties are broken by first
occurrence in the dataset. A missing value is an error, both in fitting and in transforming.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from paceline._core.arguments import check_int
from paceline.data.block import Block, Column
from paceline.data.preprocessor import ColumnPreprocessor, apply_to_batch, check_column_names
from paceline.data.preprocessors.columns import (
    Array,
    check_columns,
    count_vectors,
    holds_lists,
    look_up_indices,
    refuse_missing,
    to_lists,
    to_python_values,
)
from paceline.data.preprocessors.fitting import NamedBlockFunction, Statistic, ValueCountStatistic, apply_function
from paceline.data.preprocessors.json_values import make_categorical_dtype

if TYPE_CHECKING:
    from paceline.data.dataset import Dataset


class _Encoder(ColumnPreprocessor):
    max_categories: dict[str, int] | None = None
    _in_lists = True
    """The items of lists are categories; if False, whole lists are."""

    def _statistic(self, column: str) -> Statistic:
        return ValueCountStatistic(column, self._in_lists)

    def _learn_column(self, column: str, result: Counter[Any]) -> dict[str, Any]:
        who = type(self).__name__
        if result[None]:
            raise ValueError(
                f"{who} cannot be fitted: column {column!r} has {result[None]} missing values among {result.total()}"
                "\n\nhint: fill them with SimpleImputer first"
            )
        limit = (self.max_categories or {}).get(column)
        return {f"unique_values({column})": index_categories(result, limit, column, who)}

    def _index(self, column: str) -> dict[Any, int]:
        index: dict[Any, int] = self.stats_[f"unique_values({column})"]
        return index

    def _transform_block(self, block: Block) -> Block:
        refuse_missing(block, self.columns, type(self).__name__)
        return super()._transform_block(block)

    def _transform_column(self, block: Block, column: str) -> Column:
        return self._encode_column(block.columns[column], column)

    def _encode_column(self, values: Column, column: str) -> Column:
        raise NotImplementedError


class OrdinalEncoder(_Encoder):
    """Replaces each category by its number. Categories unknown from fitting become nan.

    In list columns, the items are encoded; with `encode_lists=False`, each whole list is a category.
    """

    def __init__(
        self, columns: list[str], *, encode_lists: bool = True, output_columns: list[str] | None = None
    ) -> None:
        super().__init__(columns, output_columns)
        self.encode_lists = self._in_lists = encode_lists

    def _encode_column(self, values: Column, column: str) -> Column:
        if not (self.encode_lists and holds_lists(values)):
            return with_nan_unknown(look_up_indices(values, self._index(column)))
        if isinstance(values, np.ndarray) and values.dtype != object:
            return with_nan_unknown(look_up_indices(values.reshape(-1), self._index(column))).reshape(values.shape)
        index = self._index(column)
        return pa.array([[index.get(item) for item in row or ()] for row in to_lists(values)], pa.list_(pa.int64()))


class _VectorEncoder(_Encoder):
    def __init__(
        self,
        columns: list[str],
        *,
        max_categories: dict[str, int] | None = None,
        output_columns: list[str] | None = None,
    ) -> None:
        super().__init__(columns, output_columns)
        self.max_categories = _check_limits(max_categories, self.columns)


class OneHotEncoder(_VectorEncoder):
    """Replaces each category by a vector with a one at its number; unknown categories become all zeros.

    A whole list is one category; use `MultiHotEncoder` to encode list items.
    """

    _in_lists = False

    def safe_get(self, v: Any, stats: Mapping[Any, int]) -> int:
        """Return the number that `stats` has for a category, -1 if it has none. Whole lists are tuples in it."""
        return stats.get(tuple(v) if isinstance(v, list | np.ndarray) else v, -1)

    def _encode_column(self, values: Column, column: str) -> Column:
        numbers = look_up_indices(values, self._index(column))
        vectors = np.zeros((len(numbers), len(self._index(column))), np.uint8)
        rows = np.flatnonzero(numbers >= 0)
        vectors[rows, numbers[rows]] = 1
        return vectors


class MultiHotEncoder(_VectorEncoder):
    """Replaces each list of categories by a vector that counts how often each category occurs in it."""

    def _encode_column(self, values: Column, column: str) -> Column:
        index = self._index(column)
        rows = to_lists(values) if holds_lists(values) else [[value] for value in to_python_values(values)]
        return count_vectors(rows, index, len(index))


class LabelEncoder(_Encoder):
    """Replaces each label by its number. Labels unknown from fitting become nan."""

    _in_lists = False

    def __init__(self, label_column: str, *, output_column: str | None = None) -> None:
        super().__init__(check_column_names([label_column], "label_column"), [output_column or label_column])
        self.label_column = label_column
        self.output_column = output_column or label_column

    def _encode_column(self, values: Column, column: str) -> Column:
        return with_nan_unknown(look_up_indices(values, self._index(column)))

    def inverse_transform(self, ds: Dataset) -> Dataset:
        """Return a dataset with numbers turned back into labels, in the fitted column."""
        self._check_fitted("inverse_transform")
        return apply_function(ds, NamedBlockFunction("inverse of LabelEncoder", self._decode_block))

    def inverse_transform_batch(self, data: Any) -> Any:
        """Turn numbers of a batch back into labels; null for a number without a label."""
        self._check_fitted("inverse_transform_batch")
        return apply_to_batch(data, self._decode_block)

    def _decode_block(self, block: Block) -> Block:
        check_columns(block, [self.output_column], "LabelEncoder")
        labels = list(self._index(self.label_column))
        numbers = look_up_indices(block.columns[self.output_column], {number: number for number in range(len(labels))})
        decoded = pa.array([labels[number] if number >= 0 else None for number in numbers.tolist()])
        return block.with_column(self.label_column, decoded)


class Categorizer(ColumnPreprocessor):
    """Makes columns categorical: pandas categoricals in a DataFrame, dictionaries in Arrow.

    Categories are learned, except for columns with a `pandas.CategoricalDtype` in `dtypes`. Missing values and values
    in no category become null.
    """

    def __init__(
        self,
        columns: list[str],
        dtypes: dict[str, Any] | None = None,
        output_columns: list[str] | None = None,
    ) -> None:
        super().__init__(columns, output_columns)
        self.dtypes = dict(dtypes or {})
        for name in self.dtypes:
            if name not in self.columns:
                raise ValueError(f"dtypes: unknown column {name!r}; the columns are {self.columns!r}")

    def _learned_columns(self) -> list[str]:
        return [column for column in self.columns if column not in self.dtypes]

    def _statistic(self, column: str) -> Statistic:
        return ValueCountStatistic(column, in_lists=False)

    def _learn(self, results: Sequence[Any]) -> dict[str, Any]:
        return super()._learn(results) | self.dtypes

    def _learn_column(self, column: str, result: Counter[Any]) -> dict[str, Any]:
        del result[None]
        return {column: make_categorical_dtype(list(index_categories(result, None, column, "Categorizer")))}

    def _transform_column(self, block: Block, column: str) -> Column:
        return to_categorical(block.columns[column], self.stats_[column])


def index_categories(counts: Counter[Any], limit: int | None, column: str, who: str) -> dict[Any, int]:
    if limit is not None:
        return {value: number for number, (value, _) in enumerate(counts.most_common(limit))}
    try:
        return {value: number for number, value in enumerate(sorted(counts))}
    except TypeError:
        kinds = ", ".join(sorted({type(value).__name__ for value in counts}))
        raise ValueError(f"{who}: column {column!r} holds values that cannot be sorted: {kinds}") from None


def with_nan_unknown(numbers: Array) -> Array:
    """Return category numbers: integers, or floats with nan for unknown categories."""
    return np.where(numbers < 0, np.nan, numbers) if (numbers < 0).any() else numbers


def to_categorical(values: Column, dtype: Any) -> Any:
    categories = dtype.categories.tolist()
    numbers = look_up_indices(values, {value: number for number, value in enumerate(categories)})
    return make_dictionary_array(numbers, categories, bool(dtype.ordered))


def make_dictionary_array(numbers: Array, categories: Iterable[Any], ordered: bool) -> Any:
    indices = pa.array(numbers.astype(np.int32), mask=numbers < 0)
    return pa.DictionaryArray.from_arrays(indices, pa.array(list(categories)), ordered=ordered)


def _check_limits(limits: Mapping[str, int] | None, columns: Sequence[str]) -> dict[str, int] | None:
    if limits is None:
        return None
    for column, limit in limits.items():
        if column not in columns:
            raise ValueError(f"max_categories: unknown column {column!r}; the columns are {list(columns)!r}")
        check_int(f"max_categories[{column!r}]", limit, at_least=1)
    return dict(limits)
