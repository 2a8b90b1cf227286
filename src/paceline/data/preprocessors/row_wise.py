"""Preprocessors that work row by row and learn nothing: Normalizer and PowerTransformer."""

from __future__ import annotations

import numpy as np

from paceline._core.arguments import check_choice
from paceline.data.block import Block
from paceline.data.preprocessor import ColumnPreprocessor
from paceline.data.preprocessors.columns import Array, floats, numeric_column

_NORMS = {
    "l1": lambda matrix: np.abs(matrix).sum(axis=0),
    "l2": lambda matrix: np.sqrt(np.square(matrix).sum(axis=0)),
    "max": lambda matrix: np.abs(matrix).max(axis=0),
}
_METHODS = ("yeo-johnson", "box-cox")


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
        self.method = check_choice("method", method, _METHODS)

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
