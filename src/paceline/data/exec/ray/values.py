"""Blocks as Ray objects, from where they are read without a copy.

A block is one row of an Arrow table, as bytes laid out by `packed.py`: what Ray Data carries from task to task. Tables
of others, as a `ray.data.Dataset` has them, are read as what they are.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from paceline.data.block import Block
from paceline.data.exec import packed as layout

HEAD = "\0head"
DATA = "\0data"
_SCHEMA = pa.schema([(HEAD, pa.large_binary()), (DATA, pa.large_binary())])


def packed(block: Block) -> Any:
    """What to `ray.put`, or to return from a task, for a block."""
    return row(None, layout.as_bytes(block))


def unpacked(value: Any) -> Block:
    """The block of what `ray.get` gave for a reference of `blocks_of`, or for what was `packed`."""
    if isinstance(value, pa.Table) and value.schema.names == _SCHEMA.names:
        return layout.unpacked(data_of(value, 0))
    from paceline.data.sources.schemas import block_of

    return block_of(value) if isinstance(value, pa.Table) else Block.from_batch(value)


def row(head: bytes | None, data: np.ndarray[Any, Any] | None) -> Any:
    """A table of one row."""
    return pa.Table.from_arrays([_one(head), _one(data)], schema=_SCHEMA)


def head_of(table: Any, number: int) -> bytes | None:
    found: bytes | None = table.column(HEAD)[number].as_py()
    return found


def data_of(table: Any, number: int) -> Any:
    """The bytes of a row, where they lie."""
    return table.column(DATA)[number].as_buffer()


def framed(blocks: Sequence[np.ndarray[Any, Any]]) -> tuple[np.ndarray[Any, Any] | None, list[int]]:
    """Packed blocks one after the other, and where each ends. Their lengths keep them aligned."""
    ends = np.cumsum([len(block) for block in blocks]).tolist()
    match len(blocks):
        case 0:
            return None, ends
        case 1:
            return blocks[0], ends
    return np.concatenate(blocks), ends


def unframed(data: Any, ends: Sequence[int]) -> Iterator[Block]:
    begin = 0
    for end in ends:
        yield layout.unpacked(memoryview(data)[begin:end])
        begin = end


def _one(value: Any) -> Any:
    if value is None:
        return pa.nulls(1, pa.large_binary())
    bounds = pa.py_buffer(np.array([0, len(value)], np.int64))
    return pa.Array.from_buffers(pa.large_binary(), 1, [None, bounds, pa.py_buffer(value)])
