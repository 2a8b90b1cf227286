"""Blocks as Ray objects, which are read without a copy.

A block is one row of an Arrow table, as bytes laid out by `packed_blocks.py`: that is what Ray Data passes between
tasks. Other tables, such as those of a `ray.data.Dataset`, are read as they are.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from paceline.data.block import Block
from paceline.data.exec import packed_blocks as layout

HEAD = "\0head"
DATA = "\0data"
_SCHEMA = pa.schema([(HEAD, pa.large_binary()), (DATA, pa.large_binary())])


def pack_for_ray(block: Block) -> Any:
    """Encode a block for `ray.put`, or to return it from a task."""
    return make_row(None, layout.pack_block(block))


def unpack_from_ray(value: Any) -> Block:
    """Decode what `ray.get` returned for a reference from `stream_blocks`, or the result of `pack_for_ray`."""
    if isinstance(value, pa.Table) and value.schema.names == _SCHEMA.names:
        return layout.unpack_block(row_data(value, 0))
    from paceline.data.sources.schemas import table_to_block

    return table_to_block(value) if isinstance(value, pa.Table) else Block.from_batch(value)


def make_row(head: bytes | None, data: np.ndarray[Any, Any] | None) -> Any:
    """A table of one row."""
    return pa.Table.from_arrays([_single_value(head), _single_value(data)], schema=_SCHEMA)


def row_head(table: Any, number: int) -> bytes | None:
    head: bytes | None = table.column(HEAD)[number].as_py()
    return head


def row_data(table: Any, number: int) -> Any:
    """The bytes of a row, without a copy."""
    return table.column(DATA)[number].as_buffer()


def join_packed(blocks: Sequence[np.ndarray[Any, Any]]) -> tuple[np.ndarray[Any, Any] | None, list[int]]:
    """Concatenate packed blocks; return the bytes and where each block ends. Their lengths keep them aligned."""
    ends = np.cumsum([len(block) for block in blocks]).tolist()
    match len(blocks):
        case 0:
            return None, ends
        case 1:
            return blocks[0], ends
    return np.concatenate(blocks), ends


def split_packed(data: Any, ends: Sequence[int]) -> Iterator[Block]:
    begin = 0
    for end in ends:
        yield layout.unpack_block(memoryview(data)[begin:end])
        begin = end


def _single_value(value: Any) -> Any:
    if value is None:
        return pa.nulls(1, pa.large_binary())
    bounds = pa.py_buffer(np.array([0, len(value)], np.int64))
    return pa.Array.from_buffers(pa.large_binary(), 1, [None, bounds, pa.py_buffer(value)])
