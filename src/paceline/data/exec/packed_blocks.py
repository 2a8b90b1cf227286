"""Blocks as bytes in a file or in memory, which are read back without a copy.

A header says where each part is. NumPy arrays are stored as raw bytes, Arrow data in Arrow's IPC format, and everything
else as a pickle. Every part is aligned to 64 bytes.
"""

from __future__ import annotations

import math
import mmap
import os
import pickle
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa

from paceline.data.block import Block, Column

ALIGNMENT = 64
PAGE = mmap.ALLOCATIONGRANULARITY
_MIN_MAPPED_BYTES = 256 << 10
"""Smaller ranges are read, not mapped: the number of mappings per process is limited."""


class _ArrayEntry(msgspec.Struct, array_like=True):
    name: str
    dtype: str
    shape: tuple[int, ...]
    offset: int


class _ByteRange(msgspec.Struct, array_like=True):
    """Columns stored together: in Arrow's format, or pickled."""

    offset: int
    length: int


class _PackedHeader(msgspec.Struct, array_like=True):
    num_rows: int
    names: list[str]
    arrays: list[_ArrayEntry]
    arrow: _ByteRange | None
    pickled: _ByteRange | None


def write_packed(fd: int, offset: int, block: Block, order: np.ndarray[Any, Any] | None = None) -> int:
    """Write a block at `offset`, with its rows in this order; return the number of bytes written."""
    return _write_with(block, order, lambda end: lambda data, at: _write_all(fd, data, offset + at))


def pack_block(block: Block, order: np.ndarray[Any, Any] | None = None) -> np.ndarray[Any, Any]:
    """Pack a block into new memory."""
    rooms: list[np.ndarray[Any, Any]] = []

    def allocate(end: int) -> Callable[[Any, int], None]:
        rooms.append(np.empty(end, np.uint8))
        view = rooms[0].data

        def put(data: Any, at: int) -> None:
            part = memoryview(data).cast("B")
            view[at : at + part.nbytes] = part

        return put

    _write_with(block, order, allocate)
    return rooms[0]


def _write_with(
    block: Block, order: np.ndarray[Any, Any] | None, opened: Callable[[int], Callable[[Any, int], None]]
) -> int:
    """Write a block through the function that `opened` returns for its length; return that length in bytes."""
    num_rows = block.num_rows if order is None else len(order)
    plain = {name: values for name, values in block.columns.items() if _is_plain(values)}
    others = {name: values for name, values in block.columns.items() if name not in plain}
    tabular = {name: values for name, values in others.items() if not isinstance(values, np.ndarray)}
    objects = {name: values for name, values in others.items() if isinstance(values, np.ndarray)}
    arrow = _serialize_arrow(Block(tabular), order) if tabular else None
    pickled = pickle.dumps(Block(objects).take(order).columns if order is not None else objects) if objects else None
    header = _PackedHeader(num_rows, list(block.columns), [], None, None)
    entries = [_ArrayEntry(name, values.dtype.str, values.shape, 1 << 62) for name, values in plain.items()]
    room = last = end = _align(128 + sum(len(msgspec.msgpack.encode(part)) for part in (header, *entries)))
    for name, values in plain.items():
        header.arrays.append(_ArrayEntry(name, values.dtype.str, (num_rows, *values.shape[1:]), end))
        last = end + num_rows * values.dtype.itemsize * math.prod(values.shape[1:])
        end = _align(last)
    if arrow is not None:
        header.arrow = _ByteRange(end, arrow.size)
        last = end + arrow.size
        end = _align(last)
    if pickled is not None:
        header.pickled = _ByteRange(end, len(pickled))
        last = end + len(pickled)
        end = _align(last)
    head = msgspec.msgpack.encode(header)
    assert len(head) + 8 <= room, "the header of a block exceeds its reserved space"
    put = opened(end)
    put((len(head).to_bytes(8, "little") + head).ljust(room, b"\0"), 0)
    scratch: dict[tuple[Any, ...], np.ndarray[Any, Any]] = {}
    for placed, values in zip(header.arrays, plain.values(), strict=True):
        put(_take_in_order(values, order, scratch), placed.offset)
    if arrow is not None and header.arrow is not None:
        put(arrow, header.arrow.offset)
    if pickled is not None and header.pickled is not None:
        put(pickled, header.pickled.offset)
    # Write the padding after the last column instead of setting the file length: that would cut off what another
    # process has written beyond this block meanwhile.
    put(bytes(end - last), last)
    return end


def read_packed(fd: int, offset: int, length: int) -> Block:
    """Read the block written there. Large blocks are views of the file, which may be closed afterwards."""
    if length < _MIN_MAPPED_BYTES or offset % PAGE:
        return unpack_block(_read_bytes(fd, offset, length))
    return unpack_block(mmap.mmap(fd, length, access=mmap.ACCESS_READ, offset=offset))


def unpack_block(buffer: Any) -> Block:
    """Read the block at the start of a buffer; its columns are views of the buffer."""
    view = memoryview(buffer)
    header = msgspec.msgpack.decode(view[8 : 8 + int.from_bytes(view[:8], "little")], type=_PackedHeader)
    columns: dict[str, Column] = {}
    for array in header.arrays:
        count = math.prod(array.shape)
        flat = np.frombuffer(view, np.dtype(array.dtype), count, array.offset) if count else np.empty(0, array.dtype)
        columns[array.name] = flat.reshape(array.shape)
    if header.arrow is not None:
        part = pa.py_buffer(view[header.arrow.offset : header.arrow.offset + header.arrow.length])
        table = pa.ipc.open_stream(part).read_all()
        columns |= dict(zip(table.schema.names, table.columns, strict=True))
    if header.pickled is not None:
        part = view[header.pickled.offset : header.pickled.offset + header.pickled.length]
        columns |= pickle.loads(part)  # noqa: S301
    return Block({name: columns[name] for name in header.names}, num_rows=header.num_rows)


def with_numpy_numbers(block: Block) -> Block:
    """Convert Arrow numbers without nulls to NumPy, which reorders them several times faster."""
    return Block({name: _to_numpy_numbers(values) for name, values in block.columns.items()}, num_rows=block.num_rows)


@dataclass(frozen=True)
class PackedSlice:
    """A range of rows of a packed block: one column can be read without the others."""

    fd: int
    offset: int
    length: int
    begin: int
    stop: int

    @cached_property
    def header(self) -> _PackedHeader:
        start = os.pread(self.fd, PAGE, self.offset)
        length = int.from_bytes(start[:8], "little")
        return msgspec.msgpack.decode(
            start[8 : 8 + length] if length + 8 <= len(start) else _read_bytes(self.fd, self.offset + 8, length),
            type=_PackedHeader,
        )

    @cached_property
    def arrays(self) -> dict[str, _ArrayEntry]:
        return {array.name: array for array in self.header.arrays}

    @property
    def num_rows(self) -> int:
        return self.stop - self.begin

    def read_into(self, name: str, room: memoryview) -> None:
        """Read a column's bytes into a buffer of the same size."""
        row_bytes = room.nbytes // self.num_rows
        _read_into(self.fd, self.offset + self.arrays[name].offset + self.begin * row_bytes, room)

    def read_others(self) -> Block:
        """Read the columns that `read_into` cannot read."""
        if self.header.arrow is None and self.header.pickled is None:
            return Block({}, num_rows=self.num_rows)
        block = read_packed(self.fd, self.offset, self.length).slice(self.begin, self.stop)
        return block.drop(self.arrays)


def read_sorted(parts: Sequence[PackedSlice], key: str) -> Block:
    """Read the rows of all parts, sorted by a numeric column, without that column.

    Each column is read into one reused buffer and reordered from there: nothing is mapped, and little memory is
    touched.
    """
    num_rows = sum(part.num_rows for part in parts)

    def fill_column(name: str, room: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        view, passed, row_bytes = _byte_view(room), 0, room.nbytes // num_rows
        for part in parts:
            end = passed + part.num_rows * row_bytes
            part.read_into(name, view[passed:end])
            passed = end
        return room

    order = np.argsort(fill_column(key, np.empty(num_rows, parts[0].arrays[key].dtype)))
    alike: dict[tuple[str, tuple[int, ...]], list[str]] = {}
    mixed: list[str] = []
    names = list(dict.fromkeys(name for part in parts for name in part.header.names if name != key))
    for name in names:
        kinds = {(a.dtype, a.shape[1:]) if (a := part.arrays.get(name)) is not None else None for part in parts}
        if len(kinds) == 1 and (kind := kinds.pop()) is not None:
            alike.setdefault(kind, []).append(name)
        else:
            mixed.append(name)
    columns: dict[str, Column] = {}
    for (dtype, shape), group in alike.items():
        # One allocation for all: the operating system backs large ones with large pages.
        arrays = np.empty((len(group), num_rows, *shape), dtype)
        room = np.empty((num_rows, *shape), dtype)
        for name, values in zip(group, arrays, strict=True):
            # "clip" does not change valid indices, and saves the copy NumPy makes in case of an error.
            columns[name] = np.take(fill_column(name, room), order, axis=0, out=values, mode="clip")
    if mixed:
        columns |= Block.concat(_read_columns(part, mixed) for part in parts).take(order).columns
    return Block({name: columns[name] for name in names}, num_rows=num_rows)


def _read_columns(part: PackedSlice, names: Sequence[str]) -> Block:
    columns = dict(part.read_others().columns)
    for name in names:
        if (array := part.arrays.get(name)) is not None:
            room = np.empty((part.num_rows, *array.shape[1:]), array.dtype)
            part.read_into(name, _byte_view(room))
            columns[name] = room
    return Block({name: columns[name] for name in names if name in columns}, num_rows=part.num_rows)


def _to_numpy_numbers(values: Column) -> Column:
    if isinstance(values, np.ndarray) or values.null_count or not len(values):
        return values
    if not (pa.types.is_integer(values.type) or pa.types.is_floating(values.type)):
        return values
    return values.chunk(0).to_numpy() if values.num_chunks == 1 else values.to_numpy()


def _is_plain(values: Column) -> bool:
    return isinstance(values, np.ndarray) and values.dtype.kind in "biufcmM"


def _align(number: int) -> int:
    return -(-number // ALIGNMENT) * ALIGNMENT


def _take_in_order(
    values: np.ndarray[Any, Any], order: np.ndarray[Any, Any] | None, scratch: dict[tuple[Any, ...], Any]
) -> memoryview:
    if order is not None:
        shape = (len(order), *values.shape[1:])
        room = scratch.get((values.dtype, shape))
        if room is None:
            room = scratch[values.dtype, shape] = np.empty(shape, values.dtype)
        # "clip" does not change valid indices, and saves the copy NumPy makes in case of an error.
        values = np.take(values, order, axis=0, out=room, mode="clip")
    return _byte_view(np.ascontiguousarray(values))


def _serialize_arrow(block: Block, order: np.ndarray[Any, Any] | None) -> Any:
    table = pa.table(block.columns)
    if order is not None:
        table = table.take(pa.array(order))
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        for batch in table.combine_chunks().to_batches():
            writer.write_batch(batch)
    return sink.getvalue()


def _write_all(fd: int, data: Any, offset: int) -> None:
    view = memoryview(data)
    while view.nbytes:
        done = os.pwrite(fd, view[: 1 << 30], offset)
        view, offset = view[done:], offset + done


def _read_bytes(fd: int, offset: int, length: int) -> bytearray:
    data = bytearray(length)
    _read_into(fd, offset, memoryview(data))
    return data


def _read_into(fd: int, offset: int, view: memoryview) -> None:
    passed = 0
    while passed < view.nbytes:
        done = os.preadv(fd, [view[passed:]], offset + passed)
        if not done:
            raise EOFError(f"spilled rows end after {passed} of {view.nbytes} bytes")
        passed += done


def _byte_view(values: np.ndarray[Any, Any]) -> memoryview:
    return values.reshape(-1).view(np.uint8).data
