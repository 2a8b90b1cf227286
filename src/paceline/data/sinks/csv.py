"""CSV files, each with a header."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from paceline._core.arguments import join_or
from paceline.data.block import Block
from paceline.data.sinks.sink import FileWriter, FormatSink, compression_suffix, open_output

_OPTIONS = ("include_header", "batch_size", "delimiter", "quoting_style")


@dataclass(frozen=True)
class CsvSink(FormatSink):
    options: Mapping[str, Any]
    """The arguments of `pyarrow.csv.WriteOptions`, which cannot be pickled."""
    compression: str | None = None

    name = "write_csv"

    @classmethod
    def from_arguments(cls, arguments: Mapping[str, Any], compression: str | None) -> CsvSink:
        from pyarrow.csv import WriteOptions

        compression_suffix(compression)
        options = dict(arguments)
        defaults = options.pop("write_options", None)
        if defaults is not None:
            options = {name: getattr(defaults, name) for name in _OPTIONS if hasattr(defaults, name)} | options
        for name in options:
            if name not in _OPTIONS:
                raise ValueError(f"write_csv: unknown argument {name!r}; use write_options, {join_or(_OPTIONS)}")
        WriteOptions(**options)
        return cls(options, compression)

    @property
    def suffix(self) -> str:
        return f".csv{compression_suffix(self.compression)}"

    def open(self, path: Path) -> CsvWriter:
        return CsvWriter(path, self)


class CsvWriter(FileWriter):
    def __init__(self, path: Path, sink: CsvSink) -> None:
        self._sink = sink
        self._stream = open_output(path, sink.compression)
        self._writer: Any = None
        self._schema: Any = None

    def can_append(self, block: Block) -> bool:
        return self._schema is None or set(block.columns) == set(self._schema.names)

    def write(self, block: Block) -> None:
        from pyarrow.csv import CSVWriter, WriteOptions

        table, options = _to_flat_table(block), self._sink.options
        if self._writer is not None:
            table = table.select(self._schema.names)
            if not table.schema.equals(self._schema):
                # Rows of other types continue in the same file, under the same header: text has no types.
                self._writer.close()
                self._writer, options = None, {**options, "include_header": False}
        if self._writer is None:
            self._schema = table.schema
            self._writer = CSVWriter(self._stream, self._schema, write_options=WriteOptions(**options))
        self._writer.write_table(table)

    def close(self) -> None:
        if self._writer is not None:
            self._writer.close()
        self._stream.close()


def _to_flat_table(block: Block) -> Any:
    for name, values in block.columns.items():
        if not isinstance(values, np.ndarray):
            if pa.types.is_nested(values.type):
                raise _unsupported_column(name, f"values of type {values.type}")
        elif values.ndim > 1:
            raise _unsupported_column(name, f"tensors of shape {values.shape[1:]}")
        elif values.dtype == object and any(isinstance(value, np.ndarray | list | dict) for value in values):
            raise _unsupported_column(name, "arrays")
    return block.to_arrow()


def _unsupported_column(name: str, values: str) -> ValueError:
    return ValueError(
        f"write_csv: column {name!r} has {values}, which CSV cannot hold\n\n"
        "hint: write_parquet and write_json can; drop_columns leaves the column out"
    )
