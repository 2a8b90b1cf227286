"""SimpleImputer: fills in missing values."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from paceline._core.arguments import check_choice, is_number
from paceline.data.block import Block, Column, as_arrow
from paceline.data.preprocessor import ColumnPreprocessor, Preprocessor
from paceline.data.preprocessors.columns import Array, floats, numeric_column
from paceline.data.preprocessors.fitting import MomentsStatistic, Statistic, ValueCountStatistic


class SimpleImputer(ColumnPreprocessor):
    """Replaces null and nan by the mean of a column, its most frequent value, or `fill_value`.

    Among equally frequent values, the first one in the dataset is used. A column that a batch lacks is created,
    with that value in all rows.
    """

    def __init__(
        self,
        columns: list[str],
        strategy: str = "mean",
        fill_value: Any = None,
        *,
        output_columns: list[str] | None = None,
    ) -> None:
        super().__init__(columns, output_columns)
        check_choice("strategy", strategy, ("mean", "most_frequent", "constant"))
        if (strategy == "constant") != (fill_value is not None):
            raise ValueError(
                f"strategy={strategy!r} {'needs a' if strategy == 'constant' else 'takes no'} fill_value, "
                f"got {fill_value!r}"
            )
        self.strategy = strategy
        self.fill_value = fill_value

    def fit_status(self) -> Preprocessor.FitStatus:
        return Preprocessor.FitStatus.NOT_FITTABLE if self.strategy == "constant" else super().fit_status()

    def _statistic(self, column: str) -> Statistic:
        is_mean = self.strategy == "mean"
        return MomentsStatistic(column, "SimpleImputer") if is_mean else ValueCountStatistic(column, in_lists=False)

    def _learn_column(self, column: str, result: Any) -> dict[str, Any]:
        fill = _most_frequent(result) if isinstance(result, Counter) else result[0]
        if fill is None:
            raise ValueError(
                f"SimpleImputer cannot be fitted: all values of column {column!r} are missing\n\n"
                "hint: strategy='constant' with a fill_value needs none"
            )
        return {f"{self.strategy}({column})": fill}

    def _needed_columns(self) -> Sequence[str]:
        return ()

    def _transform_column(self, block: Block, column: str) -> Column:
        fill = self.fill_value if self.strategy == "constant" else self.stats_[f"{self.strategy}({column})"]
        if column not in block.columns:
            return [fill] * block.num_rows
        values = block.columns[column]
        if _should_fill_floats(values, fill):
            numbers = floats(numeric_column(block, column, "SimpleImputer"))
            missing = np.isnan(numbers)
            return np.where(missing, fill, numbers).astype(numbers.dtype) if missing.any() else numbers
        is_array = isinstance(values, np.ndarray) and values.dtype != object
        try:
            return _fill_array(values, fill) if is_array else _fill_arrow(as_arrow(values), fill)
        except (TypeError, ValueError, pa.ArrowNotImplementedError) as error:
            kind = values.dtype if is_array else as_arrow(values).type
            raise ValueError(f"SimpleImputer: column {column!r} of type {kind} cannot hold {fill!r}: {error}") from None


def _most_frequent(counts: Counter[Any]) -> Any:
    del counts[None]
    return max(counts, key=counts.__getitem__, default=None)


def _should_fill_floats(values: Column, fill: Any) -> bool:
    """Whether a column is float once filled: filling with a mean turns integers into floats, in all batches alike."""
    if not is_number(fill):
        return False
    if isinstance(values, np.ndarray):
        return values.ndim == 1 and values.dtype.kind in ("biuf" if isinstance(fill, float) else "f")
    kind = values.type
    if pa.types.is_floating(kind) or pa.types.is_decimal(kind):
        return True
    return isinstance(fill, float) and bool(pa.types.is_integer(kind) or pa.types.is_boolean(kind))


def _fill_array(values: Array, fill: Any) -> Array:
    if values.dtype.kind not in "fmM":
        return values
    missing = np.isnan(values)
    if not missing.any():
        return values
    filled = values.copy()
    filled[missing] = fill
    return filled


def _fill_arrow(values: Any, fill: Any) -> Any:
    kind = values.type
    if pa.types.is_null(kind):
        return pa.array([fill] * len(values))
    if not pa.types.is_dictionary(kind):
        return pc.fill_null(values, pa.scalar(fill, kind))
    chunks = values.unify_dictionaries().chunks if isinstance(values, pa.ChunkedArray) else [values]
    filled = []
    for chunk in chunks:
        categories = chunk.dictionary.to_pylist()
        if fill not in categories:
            categories.append(fill)
        indices = pc.fill_null(chunk.indices.cast(pa.int32()), categories.index(fill))
        words = pa.array(categories, kind.value_type)
        filled.append(pa.DictionaryArray.from_arrays(indices, words, ordered=kind.ordered))
    return pa.chunked_array(filled, pa.dictionary(pa.int32(), kind.value_type, kind.ordered))
