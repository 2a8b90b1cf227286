"""Discretizers: replace a number by the index of its bin."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from paceline._core.arguments import bad_value, check_choice, is_int
from paceline.data.block import Block, Column
from paceline.data.preprocessor import ColumnPreprocessor
from paceline.data.preprocessors.columns import Array, floats, numeric_column
from paceline.data.preprocessors.encoders import make_dictionary_array, with_nan_unknown
from paceline.data.preprocessors.statistics import MinMaxStatistic, Statistic


class _Discretizer(ColumnPreprocessor):
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
        super().__init__(columns, output_columns)
        self.right = right
        self.include_lowest = include_lowest
        self.duplicates = check_choice("duplicates", duplicates, ("raise", "drop"))
        self.dtypes = dict(dtypes or {})
        if isinstance(bins, Mapping):
            for column in self.columns:
                if column not in bins:
                    raise ValueError(f"bins must have an entry for column {column!r}, got {bins!r}")
        self.bins = bins
        self._check_bins()

    def _bins_of(self, column: str) -> Any:
        return self.bins[column] if isinstance(self.bins, Mapping) else self.bins

    def _check_bins(self) -> None:
        """Check what can be checked before fitting."""

    def _edges(self, column: str) -> Array:
        raise NotImplementedError

    def _transform_column(self, block: Block, column: str) -> Column:
        values = floats(numeric_column(block, column, type(self).__name__))
        edges = self._edges(column)
        bins = assign_bins(values, edges, right=self.right, include_lowest=self.include_lowest)
        dtype = self.dtypes.get(column)
        if dtype is None:
            return with_nan_unknown(bins)
        if not hasattr(dtype, "categories"):
            return with_nan_unknown(bins) if (bins < 0).any() else bins.astype(dtype)
        if len(dtype.categories) != len(edges) - 1:
            raise ValueError(
                f"{type(self).__name__}: column {column!r} has {len(edges) - 1} bins, but its dtype has "
                f"{len(dtype.categories)} categories"
            )
        return make_dictionary_array(bins, dtype.categories.tolist(), bool(dtype.ordered))

    def _check_edges(self, edges: Any, column: str) -> Array:
        if isinstance(edges, str) or not isinstance(edges, Iterable):
            raise TypeError(f"bins of {column!r} must be a list of edges, got {edges!r}")
        checked = np.asarray(list(edges), dtype=np.float64)
        if len(checked) < 2 or (np.diff(checked) < 0).any() or np.isnan(checked).any():
            raise bad_value(f"bins of {column!r}", "at least two increasing edges", edges)
        if (np.diff(checked) == 0).any():
            if self.duplicates == "raise":
                raise bad_value(f"bins of {column!r}", "different edges", edges, "duplicates='drop' drops equal edges")
            checked = np.unique(checked)
        return checked


class CustomKBinsDiscretizer(_Discretizer):
    """Puts values into bins with given edges: one list for all columns, or a dict with one list per column.

    Values in no bin become nan. `dtypes` may set an integer type for a column, or a `pandas.CategoricalDtype` with one
    category per bin.
    """

    _is_fittable = False

    def _check_bins(self) -> None:
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
            if not is_int(bins) or bins < 1:
                raise TypeError(f"bins of {column!r} must be a positive integer, got {bins!r}")
        return [MinMaxStatistic(column, "UniformKBinsDiscretizer") for column in self.columns]

    def _learn(self, results: Sequence[Any]) -> dict[str, Any]:
        return {
            column: uniform_edges(low, high, self._bins_of(column), self.right, column)
            for column, (low, high) in zip(self.columns, results, strict=True)
        }

    def _edges(self, column: str) -> Array:
        return self._check_edges(self.stats_[column], column)


def uniform_edges(low: float | None, high: float | None, bins: int, right: bool, column: str) -> Array:
    """Return the edges of `bins` bins of equal width."""
    if low is None or high is None:
        raise ValueError(f"UniformKBinsDiscretizer cannot be fitted: all values of column {column!r} are missing")
    if math.isinf(low) or math.isinf(high):
        raise ValueError(
            f"UniformKBinsDiscretizer cannot be fitted: column {column!r} ranges from {low} to {high}\n\n"
            "hint: CustomKBinsDiscretizer accepts infinite edges"
        )
    if low == high:
        margin = 0.001 * abs(low) if low else 0.001
        return np.linspace(low - margin, high + margin, bins + 1)
    edges = np.linspace(low, high, bins + 1)
    if right:
        edges[0] -= (high - low) * 0.001
    else:
        edges[-1] += (high - low) * 0.001
    return edges


def assign_bins(values: Array, edges: Array, *, right: bool, include_lowest: bool) -> Array:
    """Return the bin index of each value; -1 for values in no bin."""
    ranks = np.searchsorted(edges, values.astype(np.float64), side="left" if right else "right")
    if include_lowest:
        ranks = np.where(values == edges[0], 1, ranks)
    outside = np.isnan(values) | (ranks == 0) | (ranks == len(edges))
    return np.where(outside, -1, ranks - 1).astype(np.int64)
