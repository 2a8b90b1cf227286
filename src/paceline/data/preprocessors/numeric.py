"""Preprocessors of numbers: scalers, which use statistics over the whole dataset, row-wise transforms, discretizers,
and a concatenator of columns.

Floats keep their width; all other numbers become float64.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, ClassVar

import numpy as np

from paceline._core.arguments import bad_value, check_choice, check_int, is_int
from paceline.data.block import Block, Column, as_numpy
from paceline.data.preprocessor import ColumnPreprocessor, Preprocessor, check_column_names
from paceline.data.preprocessors.columns import Array, check_columns, floats, numeric_column
from paceline.data.preprocessors.encoders import make_dictionary_array, with_nan_unknown
from paceline.data.preprocessors.fitting import MinMaxStatistic, MomentsStatistic, QuantileStatistic, Statistic

_NORMS = {
    "l1": lambda matrix: np.abs(matrix).sum(axis=0),
    "l2": lambda matrix: np.sqrt(np.square(matrix).sum(axis=0)),
    "max": lambda matrix: np.abs(matrix).max(axis=0),
}


_NEARLY_ZERO = 1e-8
"""Dividing by a smaller deviation or range would amplify rounding errors."""


class _Scaler(ColumnPreprocessor):
    """Subtracts and divides. Missing values stay missing; a column without values becomes nan."""

    _statistic_type: Callable[[str, str], Statistic]
    _names: ClassVar[tuple[str, ...]]
    """Of the statistic's values in `stats_`."""

    def _statistic(self, column: str) -> Statistic:
        return type(self)._statistic_type(column, type(self).__name__)

    def _learn_column(self, column: str, result: Sequence[Any]) -> dict[str, Any]:
        return {f"{name}({column})": value for name, value in zip(self._names, result, strict=True)}

    def _shift_and_scale(self, learned: Sequence[Any]) -> tuple[Any, Any]:
        raise NotImplementedError

    def _transform_column(self, block: Block, column: str) -> Array:
        values = floats(numeric_column(block, column, type(self).__name__))
        shift, scale = self._shift_and_scale([self.stats_[f"{name}({column})"] for name in self._names])
        if shift is None or scale is None:
            return np.full_like(values, np.nan)
        if scale == 0:  # all values are equal, or nearly all
            return np.where(np.isnan(values), values, np.zeros_like(values))
        with np.errstate(invalid="ignore", over="ignore"):
            scaled: Array = (values - float(shift)) / float(scale)
            return scaled


class StandardScaler(_Scaler):
    """(x - mean) / population standard deviation. A deviation below 1e-8 counts as 1."""

    _statistic_type = MomentsStatistic
    _names = ("mean", "std")

    def _shift_and_scale(self, learned: Sequence[Any]) -> tuple[Any, Any]:
        mean, std = learned
        return mean, 1.0 if std is not None and std < _NEARLY_ZERO else std


class MinMaxScaler(_Scaler):
    """(x - min) / (max - min). A range below 1e-8 counts as 1."""

    _statistic_type = MinMaxStatistic
    _names = ("min", "max")

    def _shift_and_scale(self, learned: Sequence[Any]) -> tuple[Any, Any]:
        low, high = learned
        scale = None if low is None else high - low
        return low, 1.0 if scale is not None and scale < _NEARLY_ZERO else scale


class MaxAbsScaler(_Scaler):
    """x / max(|x|). A column of zeros stays as it is."""

    _statistic_type = MinMaxStatistic
    _names = ("abs_max",)

    def _learn_column(self, column: str, result: Sequence[Any]) -> dict[str, Any]:
        return super()._learn_column(column, [None if result[0] is None else max(map(abs, result))])

    def _shift_and_scale(self, learned: Sequence[Any]) -> tuple[Any, Any]:
        return 0.0, 1.0 if learned[0] == 0 else learned[0]


class RobustScaler(_Scaler):
    """(x - median) / (high quantile - low quantile). A column with equal quantiles becomes zeros.

    Quantiles are interpolated linearly. They are exact for up to `quantile_precision` values per column; beyond that,
    each doubling of the rows keeps as many values again, and the error in rank is a few millionths.
    """

    DEFAULT_QUANTILE_PRECISION: ClassVar[int] = 1 << 20
    _names = ("low_quantile", "median", "high_quantile")

    def __init__(
        self,
        columns: list[str],
        quantile_range: tuple[float, float] = (0.25, 0.75),
        output_columns: list[str] | None = None,
        quantile_precision: int = DEFAULT_QUANTILE_PRECISION,
    ) -> None:
        super().__init__(columns, output_columns)
        low, high = quantile_range
        if not 0 <= low <= high <= 1:
            raise bad_value("quantile_range", "two numbers with 0 <= low <= high <= 1", quantile_range)
        self.quantile_range = (low, high)
        self.quantile_precision = check_int("quantile_precision", quantile_precision, at_least=2)

    def _statistic(self, column: str) -> Statistic:
        low, high = self.quantile_range
        return QuantileStatistic(column, (low, 0.5, high), self.quantile_precision, "RobustScaler")

    def _shift_and_scale(self, learned: Sequence[Any]) -> tuple[Any, Any]:
        low, median, high = learned
        return median, None if low is None else high - low


class Normalizer(ColumnPreprocessor):
    """Divides the columns of each row by their norm: `l1`, `l2` or `max`. Rows of zeros stay zero."""

    _is_fittable = False

    def __init__(self, columns: list[str], norm: str = "l2", *, output_columns: list[str] | None = None) -> None:
        super().__init__(columns, output_columns)
        self.norm = check_choice("norm", norm, _NORMS)

    def _transform_block(self, block: Block) -> Block:
        matrix = np.stack([floats(numeric_column(block, name, "Normalizer")) for name in self.columns])
        with np.errstate(invalid="ignore", over="ignore"):
            norms = _NORMS[self.norm](matrix)
            scaled = matrix / np.where(norms == 0, 1, norms)
        return Block({**block.columns, **dict(zip(self.output_columns, scaled, strict=True))})


class PowerTransformer(ColumnPreprocessor):
    """Applies a power transform, which makes values more normally distributed: `yeo-johnson` or `box-cox`.

    The power is given, not learned. `box-cox` accepts only positive values.
    """

    _is_fittable = False

    def __init__(
        self,
        columns: list[str],
        power: float,
        method: str = "yeo-johnson",
        *,
        output_columns: list[str] | None = None,
    ) -> None:
        super().__init__(columns, output_columns)
        self.power = power
        self.method = check_choice("method", method, ("yeo-johnson", "box-cox"))

    def _transform_column(self, block: Block, column: str) -> Array:
        values = floats(numeric_column(block, column, "PowerTransformer"))
        if self.method == "yeo-johnson":
            return _yeo_johnson(values.astype(np.float64), self.power).astype(values.dtype)
        if (values <= 0).any():
            raise ValueError(
                f"PowerTransformer: column {column!r} contains {values[values <= 0][0]}, and method='box-cox' accepts "
                "only positive values\n\nhint: method='yeo-johnson' accepts all values"
            )
        return _box_cox(values.astype(np.float64), self.power).astype(values.dtype)


def _box_cox(values: Array, power: float) -> Array:
    raised: Array = np.log(values) if power == 0 else (np.power(values, power) - 1) / power
    return raised


def _yeo_johnson(values: Array, power: float) -> Array:
    """Compute Box-Cox of x + 1 for x >= 0, and mirrored, with the power 2 - `power`, for x < 0."""
    right = _box_cox(np.where(values >= 0, values, 0) + 1, power)
    left = -_box_cox(1 - np.where(values >= 0, 0, values), 2 - power)
    return np.where(values >= 0, right, left)


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

    def _statistic(self, column: str) -> Statistic:
        bins = self._bins_of(column)
        if not is_int(bins) or bins < 1:
            raise TypeError(f"bins of {column!r} must be a positive integer, got {bins!r}")
        return MinMaxStatistic(column, "UniformKBinsDiscretizer")

    def _learn_column(self, column: str, result: Sequence[Any]) -> dict[str, Any]:
        low, high = result
        return {column: uniform_edges(low, high, self._bins_of(column), self.right, column)}

    def _edges(self, column: str) -> Array:
        return self._check_edges(self.stats_[column], column)


def uniform_edges(low: float | None, high: float | None, bins: int, right: bool, column: str) -> Array:
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


class Concatenator(Preprocessor):
    """Joins columns into vectors, in the given order, and drops the columns.

    Without `columns`, joins all columns of a batch except those in `exclude`. Vector columns need `flatten=True`. A
    missing column is an error, regardless of `raise_if_missing`.
    """

    _is_fittable = False

    def __init__(
        self,
        columns: list[str] | None = None,
        output_column_name: str = "concat_out",
        dtype: Any = None,
        raise_if_missing: bool = False,
        flatten: bool = False,
        *,
        exclude: str | list[str] | None = None,
    ) -> None:
        super().__init__()
        if columns is not None and exclude is not None:
            raise ValueError(f"set either columns or exclude, got columns={columns!r} and exclude={exclude!r}")
        self.columns = None if columns is None else check_column_names(columns)
        self.output_column_name = output_column_name
        self.dtype = None if dtype is None else np.dtype(dtype)
        self.raise_if_missing = raise_if_missing
        self.flatten = flatten
        self.exclude = [exclude] if isinstance(exclude, str) else exclude

    def get_output_columns(self) -> list[str]:
        return [self.output_column_name]

    def _transform_block(self, block: Block) -> Block:
        check_columns(block, self.exclude or (), "Concatenator")
        names = self.columns or [name for name in block.columns if name not in (self.exclude or ())]
        parts = [self._column_part(block, name) for name in names]
        dtype = self.dtype or np.result_type(*(part.dtype for part in parts))
        joined = np.empty((block.num_rows, sum(part.shape[1] for part in parts)), dtype)
        start = 0
        for part in parts:
            joined[:, start : start + part.shape[1]] = part
            start += part.shape[1]
        others = {name: values for name, values in block.columns.items() if name not in names}
        return Block({**others, self.output_column_name: joined})

    def _column_part(self, block: Block, name: str) -> Array:
        values = block.columns[name]
        if isinstance(values, np.ndarray) and values.dtype != object and values.ndim > 1:
            return self._flatten_column(values, name)
        if not isinstance(values, np.ndarray) and "list" in str(values.type):
            rows = as_numpy(values)
            if rows.dtype == object or rows.ndim == 1:
                raise ValueError(f"Concatenator: column {name!r} has nulls, or lists of different lengths")
            return self._flatten_column(rows, name)
        return numeric_column(block, name, "Concatenator").reshape(-1, 1)

    def _flatten_column(self, values: Array, name: str) -> Array:
        if not self.flatten:
            raise ValueError(
                f"Concatenator: column {name!r} has vectors of shape {values.shape[1:]}\n\n"
                "hint: Concatenator(..., flatten=True) joins vectors too"
            )
        return values.reshape(len(values), -1)
