"""Discretizers: replace a number by the index of its bin."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from paceline.data.block import Block, Column
from paceline.data.preprocessor import Preprocessor, check_column_names, check_output_columns
from paceline.data.preprocessors.columns import Array, floats, numeric_column
from paceline.data.preprocessors.encoders import make_dictionary_array, with_nan_unknown
from paceline.data.preprocessors.statistics import MinMaxStatistic, Statistic


class _Discretizer(Preprocessor):
    """Bins have edges, and are closed on the right, or on the left with `right=False`."""

    def __init__(
        self,
        columns: list[str],
        bins: Any,
        *,
        right: bool = True,
        include_lowest: bool = False,
        duplicates: str = "raise",
        dtypes: dict[str, Any] | None = None,
        output_columns: list[str] | None = None,
    ) -> None:
        super().__init__()
        self.columns = check_column_names(columns)
        self.right = right
        self.include_lowest = include_lowest
        if duplicates not in ("raise", "drop"):
            raise ValueError(f"duplicates={duplicates!r} must be 'raise' or 'drop'")
        self.duplicates = duplicates
        self.dtypes = dict(dtypes or {})
        self.output_columns = check_output_columns(self.columns, output_columns)
        if isinstance(bins, Mapping):
            lacking = [column for column in self.columns if column not in bins]
            if lacking:
                raise ValueError(f"bins={bins!r} has nothing for {lacking[0]!r} of columns={self.columns!r}")
        self.bins = bins

    def _bins_of(self, column: str) -> Any:
        return self.bins[column] if isinstance(self.bins, Mapping) else self.bins

    def _edges(self, column: str) -> Array:
        raise NotImplementedError

    def _transform_block(self, block: Block) -> Block:
        made = {
            output: self._bin_column(floats(numeric_column(block, column, type(self).__name__)), column)
            for column, output in zip(self.columns, self.output_columns, strict=True)
        }
        return Block({**block.columns, **made})

    def _bin_column(self, values: Array, column: str) -> Column:
        edges = self._edges(column)
        found = assign_bins(values, edges, right=self.right, include_lowest=self.include_lowest)
        dtype = self.dtypes.get(column)
        if dtype is None:
            return with_nan_unknown(found)
        if not hasattr(dtype, "categories"):
            return with_nan_unknown(found) if (found < 0).any() else found.astype(dtype)
        if len(dtype.categories) != len(edges) - 1:
            raise ValueError(
                f"{type(self).__name__}: column {column!r} has {len(edges) - 1} bins, "
                f"and dtypes has {len(dtype.categories)} categories for it"
            )
        return make_dictionary_array(found, dtype.categories.tolist(), bool(dtype.ordered))

    def _check_edges(self, edges: Any, column: str) -> Array:
        if isinstance(edges, str) or not isinstance(edges, Iterable):
            raise TypeError(f"bins of {column!r} are {edges!r}: they must be a list of edges")
        checked = np.asarray(list(edges), dtype=np.float64)
        if len(checked) < 2 or (np.diff(checked) < 0).any() or np.isnan(checked).any():
            raise ValueError(f"bins of {column!r} are {edges!r}: they must be at least two edges that increase")
        if (np.diff(checked) == 0).any():
            if self.duplicates == "raise":
                raise ValueError(
                    f"bins of {column!r} are {edges!r}: an edge is there twice\n\nhint: duplicates='drop' drops it"
                )
            checked = np.unique(checked)
        return checked


class CustomKBinsDiscretizer(_Discretizer):
    """Puts values into bins with given edges: one list for all columns, or a dict with one list per column.

    Values in no bin become nan. `dtypes` may set an integer type for a column, or a `pandas.CategoricalDtype` with one
    category per bin.
    """

    _is_fittable = False

    def __init__(
        self,
        columns: list[str],
        bins: Any,
        *,
        right: bool = True,
        include_lowest: bool = False,
        duplicates: str = "raise",
        dtypes: dict[str, Any] | None = None,
        output_columns: list[str] | None = None,
    ) -> None:
        super().__init__(
            columns,
            bins,
            right=right,
            include_lowest=include_lowest,
            duplicates=duplicates,
            dtypes=dtypes,
            output_columns=output_columns,
        )
        for column in self.columns:
            self._edges(column)

    def _edges(self, column: str) -> Array:
        return self._check_edges(self._bins_of(column), column)


class UniformKBinsDiscretizer(_Discretizer):
    """Puts values into bins of equal width: one number of bins for all columns, or a dict with one per column.

    The range is that of the fitted dataset, extended by 0.1 % so that both ends fall into a bin; values outside become
    nan. `stats_` has the edges.
    """

    def _statistics(self) -> Sequence[Statistic]:
        for column in self.columns:
            bins = self._bins_of(column)
            if not isinstance(bins, int) or isinstance(bins, bool) or bins < 1:
                raise TypeError(f"bins of {column!r} are {bins!r}: it must be an integer of at least 1")
        return [MinMaxStatistic(column, "UniformKBinsDiscretizer") for column in self.columns]

    def _learn(self, found: Sequence[Any]) -> dict[str, Any]:
        return {
            column: uniform_edges(low, high, self._bins_of(column), self.right, column)
            for column, (low, high) in zip(self.columns, found, strict=True)
        }

    def _edges(self, column: str) -> Array:
        return self._check_edges(self.stats_[column], column)


def uniform_edges(low: float | None, high: float | None, bins: int, right: bool, column: str) -> Array:
    """Return the edges of `bins` bins of equal width."""
    if low is None or high is None:
        raise ValueError(f"UniformKBinsDiscretizer cannot be fitted: all values of column {column!r} are missing")
    if math.isinf(low) or math.isinf(high):
        raise ValueError(
            f"UniformKBinsDiscretizer cannot be fitted: column {column!r} goes from {low} to {high}, and no bins of "
            "equal width do\n\nhint: CustomKBinsDiscretizer takes edges, also infinite ones"
        )
    if low == high:
        apart = 0.001 * abs(low) if low else 0.001
        return np.linspace(low - apart, high + apart, bins + 1)
    edges = np.linspace(low, high, bins + 1)
    if right:
        edges[0] -= (high - low) * 0.001
    else:
        edges[-1] += (high - low) * 0.001
    return edges


def assign_bins(values: Array, edges: Array, *, right: bool, include_lowest: bool) -> Array:
    """Return the bin index of each value; -1 for values in no bin."""
    found = np.searchsorted(edges, values.astype(np.float64), side="left" if right else "right")
    if include_lowest:
        found = np.where(values == edges[0], 1, found)
    outside = np.isnan(values) | (found == 0) | (found == len(edges))
    return np.where(outside, -1, found - 1).astype(np.int64)
