"""Scalers: scale each column with its statistics over the whole dataset.

Floats keep their width; all other numbers become float64.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from paceline.data.block import Block
from paceline.data.preprocessor import Preprocessor, check_column_names, check_output_columns
from paceline.data.preprocessors.columns import Array, floats, numeric_column
from paceline.data.preprocessors.statistics import MinMaxStatistic, MomentsStatistic, QuantileStatistic, Statistic


class _Scaler(Preprocessor):
    """Subtracts and divides. Missing values stay missing; a column without values becomes nan."""

    def __init__(self, columns: list[str], output_columns: list[str] | None = None) -> None:
        super().__init__()
        self.columns = check_column_names(columns)
        self.output_columns = check_output_columns(self.columns, output_columns)

    def _shift_and_scale(self, column: str) -> tuple[Any, Any]:
        raise NotImplementedError

    def _transform_block(self, block: Block) -> Block:
        made = {
            output: self._scale_column(floats(numeric_column(block, column, type(self).__name__)), column)
            for column, output in zip(self.columns, self.output_columns, strict=True)
        }
        return Block({**block.columns, **made})

    def _scale_column(self, values: Array, column: str) -> Array:
        shift, scale = self._shift_and_scale(column)
        if shift is None or scale is None:
            return np.full_like(values, np.nan)
        with np.errstate(invalid="ignore", over="ignore"):
            scaled: Array = (values - float(shift)) / float(scale)
            return scaled


class StandardScaler(_Scaler):
    """(x - mean) / population standard deviation. A constant column becomes zeros."""

    def _statistics(self) -> Sequence[Statistic]:
        return [MomentsStatistic(column, "StandardScaler") for column in self.columns]

    def _learn(self, found: Sequence[Any]) -> dict[str, Any]:
        means = {f"mean({column})": mean for column, (mean, _) in zip(self.columns, found, strict=True)}
        return means | {f"std({column})": std for column, (_, std) in zip(self.columns, found, strict=True)}

    def _shift_and_scale(self, column: str) -> tuple[Any, Any]:
        mean, std = self.stats_[f"mean({column})"], self.stats_[f"std({column})"]
        return mean, 1.0 if std == 0 else std


class MinMaxScaler(_Scaler):
    """(x - min) / (max - min). A constant column becomes zeros."""

    def _statistics(self) -> Sequence[Statistic]:
        return [MinMaxStatistic(column, "MinMaxScaler") for column in self.columns]

    def _learn(self, found: Sequence[Any]) -> dict[str, Any]:
        least = {f"min({column})": low for column, (low, _) in zip(self.columns, found, strict=True)}
        return least | {f"max({column})": high for column, (_, high) in zip(self.columns, found, strict=True)}

    def _shift_and_scale(self, column: str) -> tuple[Any, Any]:
        low, high = self.stats_[f"min({column})"], self.stats_[f"max({column})"]
        return low, None if low is None else (high - low) or 1.0


class MaxAbsScaler(_Scaler):
    """x / max(|x|). A column of zeros stays as it is."""

    def _statistics(self) -> Sequence[Statistic]:
        return [MinMaxStatistic(column, "MaxAbsScaler") for column in self.columns]

    def _learn(self, found: Sequence[Any]) -> dict[str, Any]:
        return {
            f"abs_max({column})": None if low is None else max(abs(low), abs(high))
            for column, (low, high) in zip(self.columns, found, strict=True)
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
            raise ValueError(f"quantile_range={quantile_range!r} must be two numbers, 0 <= low <= high <= 1")
        if not isinstance(quantile_precision, int) or quantile_precision < 2:
            raise ValueError(f"quantile_precision={quantile_precision!r} must be an integer of at least 2")
        self.quantile_range = (low, high)
        self.quantile_precision = quantile_precision

    def _statistics(self) -> Sequence[Statistic]:
        low, high = self.quantile_range
        return [
            QuantileStatistic(name, (low, 0.5, high), self.quantile_precision, "RobustScaler") for name in self.columns
        ]

    def _learn(self, found: Sequence[Any]) -> dict[str, Any]:
        names = ("low_quantile", "median", "high_quantile")
        return {
            f"{name}({column})": value
            for column, values in zip(self.columns, found, strict=True)
            for name, value in zip(names, values, strict=True)
        }

    def _shift_and_scale(self, column: str) -> tuple[Any, Any]:
        low, median, high = (self.stats_[f"{name}({column})"] for name in ("low_quantile", "median", "high_quantile"))
        return median, None if low is None else high - low

    def _scale_column(self, values: Array, column: str) -> Array:
        if self._shift_and_scale(column)[1] == 0:
            return np.where(np.isnan(values), values, np.zeros_like(values))
        return super()._scale_column(values, column)
