"""Statistics of a dataset's columns: `Dataset.summary` and its result."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import pyarrow as pa

from paceline._core.arguments import bad_value
from paceline._core.lazy_imports import explain_module, import_extra
from paceline.data.aggregate import (
    AggregateFn,
    AggregateFnV2,
    ApproximateQuantile,
    ApproximateTopK,
    Count,
    Max,
    Mean,
    Min,
    MissingValuePercentage,
    Std,
    ZeroPercentage,
)
from paceline.data.block import Schema, TensorType, list_columns
from paceline.data.column import is_list, is_number_type

AggregatesOf = Callable[[str], Sequence[AggregateFnV2]]
"""Returns the aggregates for a column."""

_CATEGORIES: dict[str, Callable[[Any], bool]] = {
    "list": is_list,
    "large_list": pa.types.is_large_list,
    "struct": pa.types.is_struct,
    "map": pa.types.is_map,
    "temporal": pa.types.is_temporal,
}


@dataclass(frozen=True, repr=False)
class DatasetSummary:
    """The result of `Dataset.summary`: statistics of columns, by column and name of the statistic."""

    STATISTIC_COLUMN: ClassVar[str] = "statistic"

    stats: Mapping[str, Mapping[str, Any]]
    dataset_schema: Schema
    columns: list[str]

    def to_pandas(self) -> Any:
        """Return a DataFrame with a row for each statistic and a column for each column; None where there is none."""
        pandas = import_extra("pandas", "a summary as a frame")
        names = list(dict.fromkeys(name for each in self.stats.values() for name in each))
        values = {column: [each.get(name) for name in names] for column, each in self.stats.items()}
        # As objects: pandas would turn the count of a column into a float.
        return pandas.DataFrame({self.STATISTIC_COLUMN: names, **values}, dtype=object)

    def get_column_stats(self, column: str) -> Any:
        """Return a DataFrame with the columns `statistic` and `value`, for one column."""
        if column not in self.stats:
            raise KeyError(f"unknown column {column!r}; the columns are: {list_columns(self.stats, column)}")
        pandas = import_extra("pandas", "a summary as a frame")
        stats = self.stats[column]
        return pandas.DataFrame({self.STATISTIC_COLUMN: list(stats), "value": list(stats.values())}, dtype=object)

    def __repr__(self) -> str:
        names = list(dict.fromkeys(name for each in self.stats.values() for name in each))
        rows = [[self.STATISTIC_COLUMN, *self.stats]]
        rows += [[name, *(_format_value(each.get(name)) for each in self.stats.values())] for name in names]
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        rows.insert(1, ["-" * width for width in widths])
        lines = ("  ".join(f"{cell:<{width}}" for cell, width in zip(row, widths, strict=True)) for row in rows)
        return "\n".join(line.rstrip() for line in lines)


def _format_value(value: Any) -> str:
    return "-" if value is None else f"{value:.6g}" if isinstance(value, float) else str(value)


def choose_aggregates(kind: Any, overrides: Mapping[Any, AggregatesOf], column: str) -> list[AggregateFn]:
    """Return the aggregates that summarize a column of this type."""
    for key, aggregates_of in overrides.items():
        if _is_of_type(kind, key):
            return list(aggregates_of(column))
    always: list[AggregateFn] = [Count(column), MissingValuePercentage(column)]
    if isinstance(kind, TensorType) or pa.types.is_nested(kind) or pa.types.is_null(kind):
        return always
    if is_number_type(kind):
        numbers = [Mean(column), Min(column), Max(column), Std(column), ApproximateQuantile(column, [0.5])]
        return [always[0], *numbers, always[1], ZeroPercentage(column)]
    if pa.types.is_temporal(kind):
        return [always[0], Min(column), Max(column), always[1]]
    return [*always, ApproximateTopK(column, 10)]


def check_overrides(overrides: Mapping[Any, Any] | None) -> Mapping[Any, AggregatesOf]:
    for key, aggregates_of in (overrides or {}).items():
        is_category = isinstance(key, str) and (key in _CATEGORIES or key == "tensor")
        if not (is_category or isinstance(key, pa.DataType | TensorType) or hasattr(key, "to_arrow_dtype")):
            raise bad_value("override_dtype_agg_mapping", "a dict with types as keys, such as pyarrow.int64()", key)
        if not callable(aggregates_of):
            expected = "a dict of functions that return the aggregates of a column"
            raise bad_value("override_dtype_agg_mapping", expected, aggregates_of)
    return overrides or {}


def _is_of_type(kind: Any, key: Any) -> bool:
    if isinstance(key, str):
        if isinstance(kind, TensorType):
            return key == "tensor"
        return key in _CATEGORIES and _CATEGORIES[key](kind)
    return bool(kind == (key.to_arrow_dtype() if hasattr(key, "to_arrow_dtype") else key))


def make_summary(
    schema: Schema, aggregates: Mapping[str, Sequence[AggregateFn]], values: Mapping[str, Any]
) -> DatasetSummary:
    """Arrange the values of aggregates by column. A list becomes one statistic for each item: `approx_topk[0]`."""
    stats: dict[str, dict[str, Any]] = {}
    for column, each in aggregates.items():
        found = stats[column] = {}
        for aggregate in each:
            name, value = aggregate.name.removesuffix(f"({column})"), values[aggregate.name]
            found |= (
                {f"{name}[{i}]": item for i, item in enumerate(value)} if isinstance(value, list) else {name: value}
            )
    return DatasetSummary(stats, schema, list(aggregates))


explain_module(__name__)
