"""Concatenator: joins number columns into one vector column."""

from __future__ import annotations

from typing import Any

import numpy as np

from paceline.data.block import Block, as_numpy
from paceline.data.preprocessor import Preprocessor, check_column_names
from paceline.data.preprocessors.columns import Array, check_columns, numeric_column


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
