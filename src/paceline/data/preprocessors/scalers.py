"""Scalers: scale each column with its statistics over the whole dataset.

Floats keep their width; all other numbers become float64.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from paceline._core.arguments import bad_value, check_int
from paceline.data.block import Block
from paceline.data.preprocessor import ColumnPreprocessor
from paceline.data.preprocessors.columns import Array, floats, numeric_column
from paceline.data.preprocessors.statistics import MinMaxStatistic, MomentsStatistic, QuantileStatistic, Statistic


class _Scaler(ColumnPreprocessor):
    """Subtracts and divides. Missing values stay missing; a column without values becomes nan."""

    def _shift_and_scale(self, column: str) -> tuple[Any, Any]:
        raise NotImplementedError

    def _transform_column(self, block: Block, column: str) -> Array:
        values = floats(numeric_column(block, column, type(self).__name__))
        shift, scale = self._shift_and_scale(column)
        if shift is None or scale is None:
            return np.full_like(values, np.nan)
        if scale == 0:  # all values are equal, or nearly all
            return np.where(np.isnan(values), values, np.zeros_like(values))
        with np.errstate(invalid="ignore", over="ignore"):
            scaled: Array = (values - float(shift)) / float(scale)
            return scaled


class StandardScaler(_Scaler):
    """(x - mean) / population standard deviation. A constant column becomes zeros."""

    def _statistics(self) -> Sequence[Statistic]:
        return [MomentsStatistic(column, "StandardScaler") for column in self.columns]

    def _learn(self, results: Sequence[Any]) -> dict[str, Any]:
        means = {f"mean({column})": mean for column, (mean, _) in zip(self.columns, results, strict=True)}
        return means | {f"std({column})": std for column, (_, std) in zip(self.columns, results, strict=True)}

    def _shift_and_scale(self, column: str) -> tuple[Any, Any]:
        mean, std = self.stats_[f"mean({column})"], self.stats_[f"std({column})"]
        return mean, 1.0 if std == 0 else std


class MinMaxScaler(_Scaler):
    """(x - min) / (max - min). A constant column becomes zeros."""

    def _statistics(self) -> Sequence[Statistic]:
        return [MinMaxStatistic(column, "MinMaxScaler") for column in self.columns]

    def _learn(self, results: Sequence[Any]) -> dict[str, Any]:
        least = {f"min({column})": low for column, (low, _) in zip(self.columns, results, strict=True)}
        return least | {f"max({column})": high for column, (_, high) in zip(self.columns, results, strict=True)}

    def _shift_and_scale(self, column: str) -> tuple[Any, Any]:
        low, high = self.stats_[f"min({column})"], self.stats_[f"max({column})"]
        return low, None if low is None else (high - low) or 1.0


class MaxAbsScaler(_Scaler):
    """x / max(|x|). A column of zeros stays as it is."""

    def _statistics(self) -> Sequence[Statistic]:
        return [MinMaxStatistic(column, "MaxAbsScaler") for column in self.columns]

    def _learn(self, results: Sequence[Any]) -> dict[str, Any]:
        return {
            f"abs_max({column})": None if low is None else max(abs(low), abs(high))
            for column, (low, high) in zip(self.columns, results, strict=True)
        }

    def _shift_and_scale(self, column: str) -> tuple[Any, Any]:
        return 0.0, 1.0 if self.stats_[f"abs_max({column})"] == 0 else self.stats_[f"abs_max({column})"]


class RobustScaler(_Scaler):
    """(x - median) / (high quantile - low quantile). A column with equal quantiles becomes zeros.

    Quantiles are interpolated linearly. They are exact for up to `quantile_precision` values per column; beyond that,
    each doubling of the rows keeps as many values again, and the error in rank is a few millionths.
    """

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

    def _statistics(self) -> Sequence[Statistic]:
        low, high = self.quantile_range
        return [
            QuantileStatistic(name, (low, 0.5, high), self.quantile_precision, "RobustScaler") for name in self.columns
        ]

    def _learn(self, results: Sequence[Any]) -> dict[str, Any]:
        names = ("low_quantile", "median", "high_quantile")
        return {
            f"{name}({column})": value
            for column, values in zip(self.columns, results, strict=True)
            for name, value in zip(names, values, strict=True)
        }

    def _shift_and_scale(self, column: str) -> tuple[Any, Any]:
        low, median, high = (self.stats_[f"{name}({column})"] for name in ("low_quantile", "median", "high_quantile"))
        return median, None if low is None else high - low
