"""Encoders: categories become numbers, or vectors of zeros and ones.

Categories are in sorted order, or, where `max_categories` limits them, the most frequent first and of equally frequent
ones that which comes first in the dataset. A missing value is an error, when fitting as when transforming.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from paceline.data.block import Block, Column
from paceline.data.preprocessor import Preprocessor, checked_columns, checked_output_columns, like
from paceline.data.preprocessors.columns import (
    Array,
    check_columns,
    count_vectors,
    holds_lists,
    lists,
    places,
    plain_values,
    refuse_missing,
)
from paceline.data.preprocessors.one_pass import Named, applied
from paceline.data.preprocessors.statistics import Counts, Statistic
from paceline.data.preprocessors.stored import categories_of

if TYPE_CHECKING:
    from paceline.data.dataset import Dataset


class _Encoder(Preprocessor):
    """Finds the categories of its columns."""

    columns: list[str]
    output_columns: list[str]
    max_categories: dict[str, int] | None = None

    def _statistics(self) -> Sequence[Statistic]:
        return [Counts(column) for column in self.columns]

    def _learn(self, found: Sequence[Any]) -> dict[str, Any]:
        who = type(self).__name__
        limits = self.max_categories or {}
        return {
            f"unique_values({column})": indexed(_complete(counts, column, who), limits.get(column), column, who)
            for column, counts in zip(self.columns, found, strict=True)
        }

    def _index(self, column: str) -> dict[Any, int]:
        index: dict[Any, int] = self.stats_[f"unique_values({column})"]
        return index

    def _transform_block(self, block: Block) -> Block:
        refuse_missing(block, self.columns, type(self).__name__)
        made = {
            output: self._encoded(block.columns[column], column)
            for column, output in zip(self.columns, self.output_columns, strict=True)
        }
        return Block({**block.columns, **made})

    def _encoded(self, values: Column, column: str) -> Column:
        raise NotImplementedError


class OrdinalEncoder(_Encoder):
    """Each category becomes its number. One that was not there when it was fitted becomes nan.

    Of a column of lists, what is in the lists is encoded; with `encode_lists=False`, each list is a category.
    """

    def __init__(
        self, columns: list[str], *, encode_lists: bool = True, output_columns: list[str] | None = None
    ) -> None:
        super().__init__()
        self.columns = checked_columns(columns)
        self.encode_lists = encode_lists
        self.output_columns = checked_output_columns(self.columns, output_columns)

    def _statistics(self) -> Sequence[Statistic]:
        return [Counts(column, in_lists=self.encode_lists) for column in self.columns]

    def _encoded(self, values: Column, column: str) -> Column:
        if not (self.encode_lists and holds_lists(values)):
            return numbered(places(values, self._index(column)))
        if isinstance(values, np.ndarray) and values.dtype != object:
            return numbered(places(values.reshape(-1), self._index(column))).reshape(values.shape)
        index = self._index(column)
        return pa.array([[index.get(item) for item in row or ()] for row in lists(values)], pa.list_(pa.int64()))


class OneHotEncoder(_Encoder):
    """Each category becomes a vector with a one at its number; a category that is not known, all zeros.

    Lists are categories as they are; see `MultiHotEncoder` for what is in them.
    """

    def __init__(
        self,
        columns: list[str],
        *,
        max_categories: dict[str, int] | None = None,
        output_columns: list[str] | None = None,
    ) -> None:
        super().__init__()
        self.columns = checked_columns(columns)
        self.max_categories = _checked_limits(max_categories, self.columns)
        self.output_columns = checked_output_columns(self.columns, output_columns)

    def _statistics(self) -> Sequence[Statistic]:
        return [Counts(column, in_lists=False) for column in self.columns]

    def _encoded(self, values: Column, column: str) -> Column:
        found = places(values, self._index(column))
        vectors = np.zeros((len(found), len(self._index(column))), np.uint8)
        known = np.flatnonzero(found >= 0)
        vectors[known, found[known]] = 1
        return vectors


class MultiHotEncoder(_Encoder):
    """Each list of categories becomes a vector that says how often each category is in it."""

    def __init__(
        self,
        columns: list[str],
        *,
        max_categories: dict[str, int] | None = None,
        output_columns: list[str] | None = None,
    ) -> None:
        super().__init__()
        self.columns = checked_columns(columns)
        self.max_categories = _checked_limits(max_categories, self.columns)
        self.output_columns = checked_output_columns(self.columns, output_columns)

    def _encoded(self, values: Column, column: str) -> Column:
        index = self._index(column)
        rows = lists(values) if holds_lists(values) else [[value] for value in plain_values(values)]
        return count_vectors(rows, index, len(index))


class LabelEncoder(_Encoder):
    """Each label becomes its number. One that was not there when it was fitted becomes nan."""

    def __init__(self, label_column: str, *, output_column: str | None = None) -> None:
        super().__init__()
        self.columns = checked_columns([label_column], "label_column")
        self.label_column = label_column
        self.output_column = output_column or label_column
        self.output_columns = [self.output_column]

    def _encoded(self, values: Column, column: str) -> Column:
        return numbered(places(values, self._index(column)))

    def inverse_transform(self, ds: Dataset) -> Dataset:
        """A dataset in which numbers are labels again, in the column that was fitted."""
        self._check_fitted("inverse_transform")
        return applied(ds, Named("inverse of LabelEncoder", self._decoded))

    def inverse_transform_batch(self, data: Any) -> Any:
        """A batch in which numbers are labels again; null for a number that has none."""
        self._check_fitted("inverse_transform_batch")
        return like(data, self._decoded)

    def _decoded(self, block: Block) -> Block:
        check_columns(block, [self.output_column], "LabelEncoder")
        labels = list(self._index(self.label_column))
        found = places(block.columns[self.output_column], {number: number for number in range(len(labels))})
        decoded = pa.array([labels[number] if number >= 0 else None for number in found.tolist()])
        return block.with_column(self.label_column, decoded)


class Categorizer(Preprocessor):
    """Columns become categorical: pandas' categories in a DataFrame, dictionaries in Arrow.

    Categories are learnt, but for the columns that `dtypes` has a `pandas.CategoricalDtype` for. What is missing and
    what is in no category is null.
    """

    def __init__(
        self,
        columns: list[str],
        dtypes: dict[str, Any] | None = None,
        output_columns: list[str] | None = None,
    ) -> None:
        super().__init__()
        self.columns = checked_columns(columns)
        self.dtypes = dict(dtypes or {})
        self.output_columns = checked_output_columns(self.columns, output_columns)
        unknown = [name for name in self.dtypes if name not in self.columns]
        if unknown:
            raise ValueError(f"dtypes has {unknown[0]!r}, which is none of columns={self.columns!r}")

    def _learnt(self) -> list[str]:
        return [column for column in self.columns if column not in self.dtypes]

    def _statistics(self) -> Sequence[Statistic]:
        return [Counts(column, in_lists=False) for column in self._learnt()]

    def _learn(self, found: Sequence[Any]) -> dict[str, Any]:
        learnt = {}
        for column, counts in zip(self._learnt(), found, strict=True):
            del counts[None]
            learnt[column] = categories_of(list(indexed(counts, None, column, "Categorizer")))
        return {column: self.dtypes.get(column) or learnt[column] for column in self.columns}

    def _transform_block(self, block: Block) -> Block:
        made = {
            output: categorical(block.columns[column], self.stats_[column])
            for column, output in zip(self.columns, self.output_columns, strict=True)
        }
        return Block({**block.columns, **made})


def indexed(counts: Counter[Any], limit: int | None, column: str, who: str) -> dict[Any, int]:
    """The number of each category."""
    if limit is not None:
        return {value: number for number, (value, _) in enumerate(counts.most_common(limit))}
    try:
        return {value: number for number, value in enumerate(sorted(counts))}
    except TypeError:
        kinds = ", ".join(sorted({type(value).__name__ for value in counts}))
        raise ValueError(f"{who}: column {column!r} holds values that have no order among them: {kinds}") from None


def numbered(found: Array) -> Array:
    """Numbers of categories: integers, or floats with nan where one is not known."""
    return np.where(found < 0, np.nan, found) if (found < 0).any() else found


def categorical(values: Column, dtype: Any) -> Any:
    """A column as a dictionary of the categories of a `pandas.CategoricalDtype`."""
    categories = dtype.categories.tolist()
    found = places(values, {value: number for number, value in enumerate(categories)})
    return coded(found, categories, bool(dtype.ordered))


def coded(found: Array, categories: Iterable[Any], ordered: bool) -> Any:
    indices = pa.array(found.astype(np.int32), mask=found < 0)
    return pa.DictionaryArray.from_arrays(indices, pa.array(list(categories)), ordered=ordered)


def _complete(counts: Counter[Any], column: str, who: str) -> Counter[Any]:
    if counts[None]:
        raise ValueError(
            f"{who} cannot be fitted: column {column!r} has {counts[None]} missing values among {counts.total()}\n\n"
            "hint: fill them first, with SimpleImputer"
        )
    return counts


def _checked_limits(limits: Mapping[str, int] | None, columns: Sequence[str]) -> dict[str, int] | None:
    if limits is None:
        return None
    for column, limit in limits.items():
        if column not in columns:
            raise ValueError(f"max_categories has {column!r}, which is none of columns={list(columns)!r}")
        if not isinstance(limit, int) or limit < 1:
            raise ValueError(f"max_categories[{column!r}]={limit!r} must be an integer of at least 1")
    return dict(limits)
