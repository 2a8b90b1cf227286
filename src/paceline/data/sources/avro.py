"""Avro files: one row per record, read by fastavro."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice

from paceline._core.lazy_imports import import_extra
from paceline.data.block import Block
from paceline.data.sources.files import InputFile, InvalidContentError, explain_read_errors
from paceline.data.sources.media import FileReader

_ROWS = 4096


@dataclass(frozen=True)
class AvroReader(FileReader):
    def read_blocks(self, file: InputFile) -> Iterator[Block]:
        fastavro = import_extra("fastavro", "read_avro")
        with explain_read_errors(file, "Avro"), file.stream() as stream:
            try:
                records = fastavro.reader(stream)
                while rows := list(islice(records, _ROWS)):
                    yield Block.from_rows(rows)
            except (EOFError, IndexError, StopIteration, UnicodeDecodeError) as error:
                raise InvalidContentError(f"{type(error).__name__}: {error}") from error
