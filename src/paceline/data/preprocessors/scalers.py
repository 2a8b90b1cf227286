"""Scalers: scale each column with its statistics over the whole dataset.

Floats keep their width; all other numbers become float64.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import numpy as np

from paceline._core.arguments import bad_value, check_int
from paceline.data.block import Block
from paceline.data.preprocessor import ColumnPreprocessor
from paceline.data.preprocessors.columns import Array, floats, numeric_column
from paceline.data.preprocessors.statistics import MinMaxStatistic, MomentsStatistic, QuantileStatistic, Statistic


class _Scaler(ColumnPreprocessor):
    """Subtracts and divides. Missing values stay missing; a column without values becomes nan."""

    _statistic: Callable[[str, str], Statistic]
    _names: ClassVar[tuple[str, ...]]
    """Of the statistic's values in `stats_`."""

    def _statistics(self) -> Sequence[Statistic]:
        return [self._statistic(column, type(self).__name__) for column in self.columns]

    def _learn(self, results: Sequence[Any]) -> dict[str, Any]:
        return {
            f"{name}({column})": value
            for column, values in zip(self.columns, results, strict=True)
            for name, value in zip(self._names, values, strict=True)
        }

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
    """(x - mean) / population standard deviation. A constant column becomes zeros."""

    _statistic = MomentsStatistic
    _names = ("mean", "std")

    def _shift_and_scale(self, learned: Sequence[Any]) -> tuple[Any, Any]:
        mean, std = learned
        return mean, 1.0 if std == 0 else std


class MinMaxScaler(_Scaler):
    """(x - min) / (max - min). A constant column becomes zeros."""

    _statistic = MinMaxStatistic
    _names = ("min", "max")

    def _shift_and_scale(self, learned: Sequence[Any]) -> tuple[Any, Any]:
        low, high = learned
        return low, None if low is None else (high - low) or 1.0


class MaxAbsScaler(_Scaler):
    """x / max(|x|). A column of zeros stays as it is."""

    _statistic = MinMaxStatistic
    _names = ("abs_max",)

    def _learn(self, results: Sequence[Any]) -> dict[str, Any]:
        return super()._learn([[None if low is None else max(abs(low), abs(high))] for low, high in results])

    def _shift_and_scale(self, learned: Sequence[Any]) -> tuple[Any, Any]:
        return 0.0, 1.0 if learned[0] == 0 else learned[0]


class RobustScaler(_Scaler):
    """(x - median) / (high quantile - low quantile). A column with equal quantiles becomes zeros.

    Quantiles are interpolated linearly. They are exact for up to `quantile_precision` values per column; beyond that,
    each doubling of the rows keeps as many values again, and the error in rank is a few millionths.
    """

    _names = ("low_quantile", "median", "high_quantile")

    def __init__(
        self,
        columns: list[str],
        quantile_range: tuple[float, float] = (0.25, 0.75),
        output_columns: list[str] | None = None,
        quantile_precision: int = 1 << 20,
    ) -> None:
        super().__init__(columns, output_columns)
        low, high = quantile_range
        if not 0 <= low <= high <= 1:
            raise bad_value("quantile_range", "two numbers with 0 <= low <= high <= 1", quantile_range)
        self.quantile_range = (low, high)
        self.quantile_precision = check_int("quantile_precision", quantile_precision, at_least=2)

    def _statistic(self, column: str, who: str) -> Statistic:
        low, high = self.quantile_range
        return QuantileStatistic(column, (low, 0.5, high), self.quantile_precision, who)

    def _shift_and_scale(self, learned: Sequence[Any]) -> tuple[Any, Any]:
        low, median, high = learned
        return median, None if low is None else high - low
