"""Lines of text files: a unit is a file, and a row is a line without its newline."""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa

from paceline.data.block import Block
from paceline.data.sources.files import explain_read_errors
from paceline.data.sources.schemas import FileSource, FileUnit

TEXT = "text"
_PIECE = 4 << 20


@dataclass(frozen=True)
class TextUnit(FileUnit):
    """One text file."""

    encoding: str
    drop_empty_lines: bool

    def read(self) -> Iterator[Block]:
        kind = f"{self.encoding} text"
        with explain_read_errors(self.file, kind):
            stream = io.TextIOWrapper(self.file.stream(), encoding=self.encoding, newline="\n")
        with stream:
            while True:
                with explain_read_errors(self.file, kind):
                    lines = stream.readlines(_PIECE)
                if not lines:
                    return
                rows = [line.removesuffix("\n").removesuffix("\r") for line in lines]
                if self.drop_empty_lines:
                    rows = [line for line in rows if line and not line.isspace()]
                if rows:
                    yield self.make_block(pa.table({TEXT: pa.array(rows, pa.string())}))


@dataclass(frozen=True)
class TextSource(FileSource):
    """The source of `read_text`."""

    encoding: str = "utf-8"
    drop_empty_lines: bool = True

    _file_schema = pa.schema([(TEXT, pa.string())])

    def units(self) -> Sequence[TextUnit]:
        return self.make_units(TextUnit, encoding=self.encoding, drop_empty_lines=self.drop_empty_lines)
