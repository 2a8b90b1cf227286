"""SimpleImputer: fills in missing values."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from paceline.data.block import Block, Column, as_arrow
from paceline.data.preprocessor import Preprocessor, check_column_names, check_output_columns
from paceline.data.preprocessors.columns import Array, floats, numeric_column
from paceline.data.preprocessors.statistics import MomentsStatistic, Statistic, ValueCountStatistic

_STRATEGIES = ("mean", "most_frequent", "constant")


class SimpleImputer(Preprocessor):
    """Replaces null and nan by the mean of a column, its most frequent value, or `fill_value`.

    Among equally frequent values, the last one when sorted as text is used. A column that a batch lacks is created,
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
        super().__init__()
        self.columns = check_column_names(columns)
        self.output_columns = check_output_columns(self.columns, output_columns)
        if strategy not in _STRATEGIES:
            raise ValueError(f"strategy={strategy!r} must be one of {', '.join(map(repr, _STRATEGIES))}")
        if (strategy == "constant") != (fill_value is not None):
            raise ValueError(
                f"strategy={strategy!r} {'needs a' if strategy == 'constant' else 'takes no'} fill_value, "
                f"and fill_value={fill_value!r}"
            )
        self.strategy = strategy
        self.fill_value = fill_value

    def fit_status(self) -> Preprocessor.FitStatus:
        return Preprocessor.FitStatus.NOT_FITTABLE if self.strategy == "constant" else super().fit_status()

    def _statistics(self) -> Sequence[Statistic]:
        if self.strategy == "mean":
            return [MomentsStatistic(column, "SimpleImputer") for column in self.columns]
        return [ValueCountStatistic(column, in_lists=False) for column in self.columns]

    def _learn(self, found: Sequence[Any]) -> dict[str, Any]:
        fills = [_most_frequent(what) if isinstance(what, Counter) else what[0] for what in found]
        for column, fill in zip(self.columns, fills, strict=True):
            if fill is None:
                raise ValueError(
                    f"SimpleImputer cannot be fitted: all values of column {column!r} are missing\n\n"
                    "hint: strategy='constant' with a fill_value needs none"
                )
        return {f"{self.strategy}({column})": fill for column, fill in zip(self.columns, fills, strict=True)}

    def _needed_columns(self) -> Sequence[str]:
        return ()

    def _transform_block(self, block: Block) -> Block:
        made: dict[str, Column] = {}
        for column, output in zip(self.columns, self.output_columns, strict=True):
            fill = self.fill_value if self.strategy == "constant" else self.stats_[f"{self.strategy}({column})"]
            if column in block.columns:
                made[output] = self._fill_column(block, column, fill)
            else:
                made[output] = [fill] * block.num_rows
        return Block({**block.columns, **made}, num_rows=block.num_rows)

    def _fill_column(self, block: Block, column: str, fill: Any) -> Column:
        values = block.columns[column]
        if _should_fill_floats(values, fill):
            found = floats(numeric_column(block, column, "SimpleImputer"))
            missing = np.isnan(found)
            return np.where(missing, fill, found).astype(found.dtype) if missing.any() else found
        if isinstance(values, np.ndarray) and values.dtype != object:
            return _fill_array(values, fill, column)
        try:
            return _fill_arrow(as_arrow(values), fill)
        except (pa.ArrowInvalid, pa.ArrowTypeError, pa.ArrowNotImplementedError) as error:
            raise ValueError(
                f"SimpleImputer: column {column!r} holds {as_arrow(values).type}, and {fill!r} cannot be put there: "
                f"{error}"
            ) from None


def _most_frequent(counts: Counter[Any]) -> Any:
    del counts[None]
    most = max(counts.values(), default=0)
    return max((value for value, count in counts.items() if count == most), key=str, default=None)


def _should_fill_floats(values: Column, fill: Any) -> bool:
    """Whether a column is float once filled: filling with a mean turns integers into floats, in all batches alike."""
    if isinstance(fill, bool) or not isinstance(fill, int | float):
        return False
    if isinstance(values, np.ndarray):
        return values.ndim == 1 and values.dtype.kind in ("biuf" if isinstance(fill, float) else "f")
    kind = values.type
    if pa.types.is_floating(kind) or pa.types.is_decimal(kind):
        return True
    return isinstance(fill, float) and bool(pa.types.is_integer(kind) or pa.types.is_boolean(kind))


def _fill_array(values: Array, fill: Any, column: str) -> Array:
    if values.dtype.kind not in "fmM":
        return values
    missing = np.isnan(values)
    if not missing.any():
        return values
    filled = values.copy()
    try:
        filled[missing] = fill
    except (TypeError, ValueError) as error:
        raise ValueError(
            f"SimpleImputer: column {column!r} holds {values.dtype}, and {fill!r} cannot be put there: {error}"
        ) from None
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
