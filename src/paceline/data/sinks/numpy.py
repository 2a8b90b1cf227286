"""One column as `.npy` files."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from paceline.data.block import Block, as_numpy
from paceline.data.sinks.sink import FileWriter, FormatSink


@dataclass(frozen=True)
class NumpySink(FormatSink):
    column: str

    name = "write_numpy"
    suffix = ".npy"

    def open(self, path: Path) -> NumpyWriter:
        return NumpyWriter(path, self.column)


class NumpyWriter(FileWriter):
    """The file header contains the number of rows, so rows are buffered until all are there."""

    def __init__(self, path: Path, column: str) -> None:
        self._path = path
        self._column = column
        self._parts: list[Any] = []

    def can_append(self, block: Block) -> bool:
        if not self._parts:
            return True
        first, values = self._parts[0], _to_array(self._column, block)
        return bool(values.shape[1:] == first.shape[1:] and values.dtype.kind == first.dtype.kind)

    def write(self, block: Block) -> None:
        self._parts.append(_to_array(self._column, block))

    def close(self) -> None:
        values = self._parts[0] if len(self._parts) == 1 else np.concatenate(self._parts)
        with self._path.open("wb") as file:
            np.save(file, values, allow_pickle=False)
        self._parts.clear()

    def abandon(self) -> None:
        self._parts.clear()


def _to_array(column: str, block: Block) -> Any:
    values = as_numpy(block.column(column))
    if values.dtype != object:
        return values
    kinds = {type(value) for value in values}
    if kinds <= {str, np.str_} or kinds <= {bytes}:
        return np.array(values.tolist())
    shapes = {getattr(value, "shape", None) for value in values}
    if kinds == {np.ndarray} and len(shapes) == 1:
        return np.stack(list(values))
    values_text = (
        "arrays of different shapes" if kinds == {np.ndarray} else " and ".join(sorted(k.__name__ for k in kinds))
    )
    raise ValueError(
        f"write_numpy: column {column!r} has {values_text}, which do not fit one array\n\n"
        "hint: write_parquet can write them"
    )
