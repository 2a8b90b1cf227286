"""CSV files, each with a header."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from paceline.data.block import Block
from paceline.data.sinks.output_streams import compression_suffix, open_output

_OPTIONS = ("include_header", "batch_size", "delimiter", "quoting_style")


@dataclass(frozen=True)
class CsvSink:
    options: Mapping[str, Any]
    """The arguments of `pyarrow.csv.WriteOptions`, which cannot be pickled."""
    compression: str | None = None

    name = "write_csv"
    one_row_each = False

    @classmethod
    def from_arguments(cls, arguments: Mapping[str, Any], compression: str | None) -> CsvSink:
        from pyarrow.csv import WriteOptions

        compression_suffix(compression)
        given = dict(arguments)
        whole = given.pop("write_options", None)
        if whole is not None:
            given = {name: getattr(whole, name) for name in _OPTIONS if hasattr(whole, name)} | given
        for name in given:
            if name not in _OPTIONS:
                raise ValueError(
                    f"write_csv has no argument {name!r}: it may have write_options, {', '.join(_OPTIONS)}"
                )
        WriteOptions(**given)
        return cls(given, compression)

    @property
    def suffix(self) -> str:
        return f".csv{compression_suffix(self.compression)}"

    def open(self, path: Path) -> CsvWriter:
        return CsvWriter(path, self)


class CsvWriter:
    def __init__(self, path: Path, sink: CsvSink) -> None:
        self._sink = sink
        self._stream = open_output(path, sink.compression)
        self._writer: Any = None
        self._schema: Any = None

    def can_append(self, block: Block) -> bool:
        return self._schema is None or set(block.columns) == set(self._schema.names)

    def write(self, block: Block) -> None:
        from pyarrow.csv import CSVWriter, WriteOptions

        table = _to_flat_table(block)
        if self._writer is None:
            self._schema = table.schema
            self._writer = CSVWriter(self._stream, self._schema, write_options=WriteOptions(**self._sink.options))
        table = table.select(self._schema.names)
        if not table.schema.equals(self._schema):
            self._writer = self._restart_writer(table.schema)
        self._writer.write_table(table)

    def close(self) -> None:
        if self._writer is not None:
            self._writer.close()
        self._stream.close()

    abandon = close

    def _restart_writer(self, schema: Any) -> Any:
        """Rows of other types continue in the same file, under the same header: text has no types."""
        from pyarrow.csv import CSVWriter, WriteOptions

        self._writer.close()
        self._schema = schema
        options = WriteOptions(**{**self._sink.options, "include_header": False})
        return CSVWriter(self._stream, schema, write_options=options)


def _to_flat_table(block: Block) -> Any:
    for name, values in block.columns.items():
        if isinstance(values, np.ndarray) and (values.ndim > 1 or _has_nested_values(values)):
            raise _unsupported_column(name, f"tensors of shape {values.shape[1:]}" if values.ndim > 1 else "arrays")
        if not isinstance(values, np.ndarray) and pa.types.is_nested(values.type):
            raise _unsupported_column(name, f"values of type {values.type}")
    return block.to_arrow()


def _has_nested_values(values: Any) -> bool:
    return values.dtype == object and any(isinstance(value, np.ndarray | list | dict) for value in values)


def _unsupported_column(name: str, what: str) -> ValueError:
    return ValueError(
        f"write_csv: the column {name!r} has {what}, for which there is no place in a CSV file\n\n"
        "hint: write_parquet or write_json keep them; drop_columns leaves the column out"
    )
