"""Files as raw bytes, one row each."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from paceline.data.block import Block, Schema
from paceline.data.sources.files import InputFile
from paceline.data.sources.media import FileReader

BYTES = "bytes"
_WIDE_BYTES = 1 << 30
"""From this size on, Arrow's 32-bit binary type may be too small for a joined column."""


@dataclass(frozen=True)
class BinaryReader(FileReader):
    type: Any
    unit_bytes = 32 << 20
    max_unit_files = 512
    rows_per_file = 1

    def read_blocks(self, file: InputFile) -> Iterator[Block]:
        yield Block({BYTES: pa.array([file.read()], self.type)})

    def schema(self) -> Schema | None:
        return Schema([BYTES], [self.type])


def choose_binary_type(files: Sequence[InputFile]) -> Any:
    is_wide = any(file.size >= (_WIDE_BYTES // 16 if file.compression else _WIDE_BYTES) for file in files)
    return pa.large_binary() if is_wide else pa.binary()
