"""ORC files. A unit is a file, read one stripe at a time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import pyarrow as pa

from paceline.data.block import Block, Schema
from paceline.data.sources import schemas
from paceline.data.sources.files import InputFile, explain_read_errors
from paceline.data.sources.text import FileSource, FileUnit

ORC = "ORC"


def _open_orc(file: InputFile) -> Any:
    from pyarrow import orc

    return orc.ORCFile(file.open())


@dataclass(frozen=True)
class OrcUnit(FileUnit):
    schema: Any
    columns: tuple[str, ...]

    def read(self) -> Iterator[Block]:
        stored = [name for name in self.columns if name in self.schema.names]
        with explain_read_errors(self.file, ORC):
            opened = _open_orc(self.file)
        for number in range(opened.nstripes):
            with explain_read_errors(self.file, ORC):
                table = pa.Table.from_batches([opened.read_stripe(number, columns=stored)])
                table = schemas.conform_table(table, pa.schema([self.schema.field(name) for name in stored]))
            if table.num_rows:
                yield self.make_block(table, self.columns)


@dataclass(frozen=True)
class OrcSource(FileSource):
    columns: tuple[str, ...] | None = None

    def units(self) -> Sequence[OrcUnit]:
        names = self.columns or tuple(self._full_schema.names)
        return self.make_units(OrcUnit, schema=self._file_schema, columns=names)

    def schema(self) -> Schema | None:
        names = self.columns or self._full_schema.names
        return schemas.to_schema(pa.schema([self._full_schema.field(name) for name in names]))

    def project_columns(self, columns: Sequence[str]) -> OrcSource | None:
        if not {*columns} & {*self._file_schema.names} or not {*columns} <= {*self._full_schema.names}:
            return None  # without a stored column, rows cannot be counted
        return replace(self, columns=tuple(columns))

    @cached_property
    def _file_schema(self) -> Any:
        """One schema for all files; they are opened to find it."""
        found = []
        for file in self.files:
            with explain_read_errors(file, ORC):
                found.append(_open_orc(file).schema)
            schemas.check_unique_names(file, found[-1].names)
        return schemas.unify_schemas(self.files, found)
