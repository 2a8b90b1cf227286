"""Blocks as bytes: in shared memory, in a file or in an object store. They are read back without a copy.

NumPy columns are stored as raw bytes, Arrow columns in Arrow's IPC format, and everything else as a pickle. Every part
is aligned to 64 bytes, and a `BlockLayout` says where it is. A packed block ends with its own layout.
"""

from __future__ import annotations

import ctypes
import math
import mmap
import os
import pickle
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa

from paceline.data.block import Block, Column, ConcatenatedBlock
from paceline.data.column import scratch_array
from paceline.data.planning.sort_keys import order_by_radix

ALIGNMENT = 64
PAGE = mmap.ALLOCATIONGRANULARITY
_MIN_MAPPED_BYTES = 256 << 10
"""Smaller ranges are read, not mapped: the number of mappings per process is limited."""


class _ArrayEntry(msgspec.Struct, array_like=True, frozen=True):
    name: str
    dtype: str
    shape: tuple[int, ...]
    offset: int


class BlockLayout(msgspec.Struct, array_like=True, frozen=True):
    num_rows: int
    nbytes: int
    names: tuple[str, ...]
    arrays: tuple[_ArrayEntry, ...] = ()
    arrow: tuple[int, int] | None = None
    """Start and end of the table with all Arrow columns."""
    pickled: tuple[int, int] | None = None
    """Start and end of the pickled dict with all other columns."""


def split_rows(block: Block, first: int, max_bytes: int) -> Iterator[tuple[int, int]]:
    """Split the rows of a block, starting at `first`, into ranges of at most about `max_bytes`."""
    size = block.num_rows
    if block.nbytes > max_bytes:
        size = max(1, block.num_rows * max_bytes // block.nbytes)
    for begin in range(first, block.num_rows, max(size, 1)):
        yield begin, min(begin + size, block.num_rows)


class BlockWriter:
    """Measures a block, with its rows in this order, and then writes it to the places in `layout`."""

    def __init__(self, block: Block, order: np.ndarray[Any, Any] | None = None, *, combine: bool = False) -> None:
        """`combine` stores each Arrow column as one chunk."""
        parts = block.arrays() if isinstance(block, ConcatenatedBlock) and order is None else None
        arrays: dict[str, list[np.ndarray[Any, Any]]] = {}
        arrow: dict[str, Any] = {}
        objects: dict[str, Any] = {}
        columns: Mapping[str, Any] = block.columns if parts is None else parts
        for name, values in columns.items():
            column = values if isinstance(values, list) else [values]
            if not isinstance(column[0], np.ndarray):
                arrow[name] = column[0]
            elif _is_plain(column[0].dtype):
                arrays[name] = column
            else:
                objects[name] = column[0] if len(column) == 1 else block.columns[name]
        self._order = order
        self._arrays = list(arrays.values())
        self._table: Any = pa.table(arrow)
        if order is not None:
            objects = Block(objects).take(order).columns if objects else objects
            self._table = self._table.take(pa.array(order)) if arrow else self._table
        if combine:
            self._table = self._table.combine_chunks()
        self._pickled = pickle.dumps(objects, protocol=5) if objects else b""
        num_rows = block.num_rows if order is None else len(order)
        end, entries, arrow_at, pickled_at = 0, [], None, None
        for name, (first, *_) in arrays.items():
            shape = (num_rows, *first.shape[1:])
            entries.append(_ArrayEntry(name, first.dtype.str, shape, end))
            end = _align(end + first.dtype.itemsize * math.prod(shape))
        if arrow:
            sink = pa.MockOutputStream()
            _write_ipc(self._table, sink)
            arrow_at = (end, end + int(sink.size()))
            end = _align(arrow_at[1])
        if objects:
            pickled_at = (end, end + len(self._pickled))
            end = _align(pickled_at[1])
        self.layout = BlockLayout(num_rows, end, tuple(columns), tuple(entries), arrow_at, pickled_at)

    def write_into(self, memory: Any) -> None:
        """Write into a buffer."""
        for entry, parts in zip(self.layout.arrays, self._arrays, strict=True):
            begin = entry.offset
            for values in parts:
                shape = values.shape if self._order is None else entry.shape
                room: np.ndarray[Any, Any] = np.ndarray(shape, values.dtype, memory, begin)
                if self._order is not None:
                    # "clip" does not change valid indices, and saves the copy NumPy makes in case of an error.
                    np.take(values, self._order, axis=0, out=room, mode="clip")
                elif values.size:
                    np.copyto(room, values)
                begin += values.nbytes
        if self.layout.arrow is not None:
            begin, end = self.layout.arrow
            target = (ctypes.c_char * (end - begin)).from_buffer(memory, begin)
            with pa.FixedSizeBufferWriter(pa.py_buffer(target)) as sink:
                _write_ipc(self._table, sink)
        if self.layout.pickled is not None:
            begin, end = self.layout.pickled
            memoryview(memory)[begin:end] = self._pickled

    def write_to_file(self, fd: int, offset: int) -> None:
        scratch: dict[tuple[Any, ...], np.ndarray[Any, Any]] = {}
        for entry, parts in zip(self.layout.arrays, self._arrays, strict=True):
            begin = offset + entry.offset
            for values in parts:
                _write_all(fd, _take_in_order(values, self._order, scratch), begin)
                begin += values.nbytes
        if self.layout.arrow is not None:
            sink = pa.BufferOutputStream()
            _write_ipc(self._table, sink)
            _write_all(fd, sink.getvalue(), offset + self.layout.arrow[0])
        if self.layout.pickled is not None:
            _write_all(fd, self._pickled, offset + self.layout.pickled[0])


class PieceWriter:
    """Writes blocks one behind the other, as one block of at most `num_rows` rows, which need not be known before."""

    def __init__(self, first: Block, num_rows: int) -> None:
        self._room, self._entries, end = num_rows, [], 0
        for name, values in first.columns.items():
            assert isinstance(values, np.ndarray)
            shape = (num_rows, *values.shape[1:])
            self._entries.append(_ArrayEntry(name, values.dtype.str, shape, end))
            end = _align(end + values.dtype.itemsize * math.prod(shape))
        self.nbytes = end
        self._num_rows = 0

    @staticmethod
    def can_write(block: Block) -> bool:
        return all(isinstance(values, np.ndarray) and _is_plain(values.dtype) for values in block.columns.values())

    def fits(self, block: Block) -> bool:
        """Whether there is room for the block, and its columns are like those of the first."""
        columns = [
            (name, values.dtype.str, values.shape[1:]) if isinstance(values, np.ndarray) else None
            for name, values in block.columns.items()
        ]
        alike = columns == [(entry.name, entry.dtype, entry.shape[1:]) for entry in self._entries]
        return alike and self._num_rows + block.num_rows <= self._room

    def write(self, block: Block, memory: Any) -> None:
        for entry, values in zip(self._entries, block.columns.values(), strict=True):
            begin = entry.offset + self._num_rows * (values.nbytes // max(block.num_rows, 1))
            if values.nbytes:
                np.copyto(np.ndarray(values.shape, values.dtype, memory, begin), values)
        self._num_rows += block.num_rows

    def finish(self) -> BlockLayout:
        """Where the rows are that were written so far."""
        entries = tuple(_ArrayEntry(e.name, e.dtype, (self._num_rows, *e.shape[1:]), e.offset) for e in self._entries)
        return BlockLayout(self._num_rows, self.nbytes, tuple(e.name for e in entries), entries)


def view_block(layout: BlockLayout, buffer: Any, *, writable: bool = True) -> Block:
    """Return the block in a buffer. Its columns are views, writable if the buffer and `writable` allow it."""
    columns: dict[str, Any] = {}
    for entry in layout.arrays:
        array: np.ndarray[Any, Any] = np.ndarray(entry.shape, np.dtype(entry.dtype), buffer, entry.offset)
        array.flags.writeable = array.flags.writeable and writable
        columns[entry.name] = array
    if layout.arrow is not None:
        begin, end = layout.arrow
        with pa.ipc.open_stream(pa.py_buffer(buffer).slice(begin, end - begin)) as stream:
            table = stream.read_all()
        columns |= zip(table.schema.names, table.columns, strict=True)
    if layout.pickled is not None:
        begin, end = layout.pickled
        columns |= pickle.loads(memoryview(buffer)[begin:end])  # noqa: S301
    return Block({name: columns[name] for name in layout.names}, num_rows=layout.num_rows)


def read_shared(layout: BlockLayout, memory: mmap.mmap, released: Callable[[], None], *, writable: bool) -> Block:
    """Return a block in shared memory; `released` is called when the last view of it is gone."""
    base: Any = (ctypes.c_char * layout.nbytes).from_buffer(memory)
    # Not at interpreter exit: the operating system releases everything then.
    weakref.finalize(base, released).atexit = False
    return view_block(layout, base, writable=writable)


class PackedWriter:
    """Measures a block, with its rows in this order, and then writes it and its layout to a file or into memory."""

    def __init__(self, block: Block, order: np.ndarray[Any, Any] | None = None) -> None:
        self._writer = BlockWriter(block, order, combine=True)
        self._footer = _encode_footer(self._writer.layout)
        self.length = self._writer.layout.nbytes + len(self._footer)

    def write(self, fd: int, offset: int) -> None:
        self._writer.write_to_file(fd, offset)
        _write_all(fd, self._footer, offset + self._writer.layout.nbytes)

    def write_into(self, memory: memoryview) -> None:
        self._writer.write_into(memory)
        memory[self._writer.layout.nbytes :] = self._footer


def pack_block(block: Block) -> np.ndarray[Any, Any]:
    """Pack a block into new memory."""
    writer = BlockWriter(block, combine=True)
    footer = _encode_footer(writer.layout)
    memory = np.empty(writer.layout.nbytes + len(footer), np.uint8)
    writer.write_into(memory)
    memory[writer.layout.nbytes :] = np.frombuffer(footer, np.uint8)
    return memory


def _encode_footer(layout: BlockLayout) -> bytes:
    encoded = msgspec.msgpack.encode(layout)
    return encoded.rjust(_align(len(encoded) + 8) - 8, b"\0") + len(encoded).to_bytes(8, "little")


def _decode_footer(end: Any) -> BlockLayout | None:
    """Read the layout from the end of a packed block; None if it begins before these bytes."""
    begin = len(end) - 8 - int.from_bytes(end[-8:], "little")
    return msgspec.msgpack.decode(end[begin:-8], type=BlockLayout) if begin >= 0 else None


def read_packed(fd: int, offset: int, length: int) -> Block:
    """Read the block written there. Large blocks are views of the file, which may be closed afterwards."""
    if length < _MIN_MAPPED_BYTES or offset % PAGE:
        return unpack_block(_read_bytes(fd, offset, length))
    return unpack_block(mmap.mmap(fd, length, access=mmap.ACCESS_READ, offset=offset))


def unpack_block(buffer: Any) -> Block:
    """Read a packed block; its columns are views of the buffer."""
    layout = _decode_footer(memoryview(buffer))
    assert layout is not None, "a packed block is shorter than its layout"
    return view_block(layout, buffer)


@dataclass(frozen=True)
class PackedSlice:
    """A range of rows of a packed block: one column can be read without the others."""

    fd: int
    offset: int
    length: int
    begin: int
    stop: int
    memory: memoryview | None = None
    """The whole block, if it is mapped."""

    @cached_property
    def layout(self) -> BlockLayout:
        if self.memory is not None:
            layout = _decode_footer(self.memory)
            assert layout is not None, "a packed block is shorter than its layout"
            return layout
        end = self.offset + self.length
        begin = max(self.offset, end - PAGE)
        layout = _decode_footer(os.pread(self.fd, end - begin, begin))
        layout = layout or _decode_footer(_read_bytes(self.fd, self.offset, self.length))
        assert layout is not None, "a packed block is shorter than its layout"
        return layout

    @cached_property
    def arrays(self) -> dict[str, _ArrayEntry]:
        return {array.name: array for array in self.layout.arrays}

    @property
    def num_rows(self) -> int:
        return self.stop - self.begin

    def read_into(self, name: str, room: memoryview) -> None:
        """Read a column's bytes into a buffer of the same size."""
        row_bytes = room.nbytes // self.num_rows
        if self.memory is not None:
            room[:] = self.view_bytes(name, row_bytes).data
        else:
            _read_into(self.fd, self.offset + self.arrays[name].offset + self.begin * row_bytes, room)

    def view_bytes(self, name: str, row_bytes: int) -> np.ndarray[Any, Any]:
        """A column's bytes, if the block is mapped."""
        first = self.arrays[name].offset + self.begin * row_bytes
        return self._mapped_bytes[first : first + (self.stop - self.begin) * row_bytes]

    def view_column(self, name: str) -> np.ndarray[Any, Any]:
        """A column that `read_into` can read, if the block is mapped."""
        entry = self.arrays[name]
        column: np.ndarray[Any, Any] = np.ndarray(entry.shape, entry.dtype, self.memory, entry.offset)
        return column[self.begin : self.stop]

    @cached_property
    def _mapped_bytes(self) -> np.ndarray[Any, Any]:
        assert self.memory is not None
        return np.frombuffer(self.memory, np.uint8)

    def read_others(self) -> Block:
        """Read the columns that `read_into` cannot read."""
        if self.layout.arrow is None and self.layout.pickled is None:
            return Block({}, num_rows=self.num_rows)
        memory = self.memory
        block = read_packed(self.fd, self.offset, self.length) if memory is None else unpack_block(memory)
        return block.slice(self.begin, self.stop).drop(self.arrays)


def read_joined(parts: Sequence[PackedSlice]) -> Block:
    """Read the rows of all parts, each column directly into one array if it has one type."""
    num_rows = sum(part.num_rows for part in parts)
    alike, mixed = _list_columns(parts)
    columns: dict[str, Column] = {}
    for (dtype, shape), group in alike.items():
        for name in group:
            columns[name] = _fill_column(parts, name, scratch_array((num_rows, *shape), np.dtype(dtype)))
    if mixed:
        columns |= Block.concat(_read_columns(part, mixed) for part in parts).columns
    return Block({name: columns[name] for name in _list_names(parts)}, num_rows=num_rows)


def read_sorted(parts: Sequence[PackedSlice], key: str) -> Block:
    """Read the rows of all parts, sorted by a column of unsigned integers, without that column.

    Each column is read into one reused buffer and reordered from there, so that little memory is touched.
    """
    num_rows = sum(part.num_rows for part in parts)
    order = order_by_radix(_fill_column(parts, key, np.empty(num_rows, parts[0].arrays[key].dtype)))
    alike, mixed = _list_columns(parts, key)
    columns: dict[str, Column] = {}
    for (dtype, shape), group in alike.items():
        # One allocation for all: the operating system backs large ones with large pages.
        arrays = np.empty((len(group), num_rows, *shape), dtype)
        room = np.empty((num_rows, *shape), dtype)
        for name, values in zip(group, arrays, strict=True):
            # "clip" does not change valid indices, and saves the copy NumPy makes in case of an error.
            columns[name] = np.take(_fill_column(parts, name, room), order, axis=0, out=values, mode="clip")
    if mixed:
        columns |= Block.concat(_read_columns(part, mixed) for part in parts).take(order).columns
    return Block({name: columns[name] for name in _list_names(parts, key)}, num_rows=num_rows)


def _fill_column(parts: Sequence[PackedSlice], name: str, room: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    view, passed, row_bytes = _byte_view(room), 0, room.nbytes // len(room)
    if all(part.memory is not None for part in parts):
        np.concatenate([part.view_bytes(name, row_bytes) for part in parts], out=np.asarray(view))
        return room
    for part in parts:
        end = passed + part.num_rows * row_bytes
        part.read_into(name, view[passed:end])
        passed = end
    return room


def _list_names(parts: Sequence[PackedSlice], without: str | None = None) -> list[str]:
    return list(dict.fromkeys(name for part in parts for name in part.layout.names if name != without))


def _list_columns(
    parts: Sequence[PackedSlice], without: str | None = None
) -> tuple[dict[tuple[str, tuple[int, ...]], list[str]], list[str]]:
    """The columns that are arrays of one kind in all parts, by kind, and the others."""
    alike: dict[tuple[str, tuple[int, ...]], list[str]] = {}
    mixed: list[str] = []
    for name in _list_names(parts, without):
        kinds = {(a.dtype, a.shape[1:]) if (a := part.arrays.get(name)) is not None else None for part in parts}
        if len(kinds) == 1 and (kind := kinds.pop()) is not None:
            alike.setdefault(kind, []).append(name)
        else:
            mixed.append(name)
    return alike, mixed


def _read_columns(part: PackedSlice, names: Sequence[str]) -> Block:
    columns = dict(part.read_others().columns)
    for name in names:
        if (array := part.arrays.get(name)) is not None:
            room = np.empty((part.num_rows, *array.shape[1:]), array.dtype)
            part.read_into(name, _byte_view(room))
            columns[name] = room
    return Block({name: columns[name] for name in names if name in columns}, num_rows=part.num_rows)


def _is_plain(dtype: np.dtype[Any]) -> bool:
    """Whether the raw bytes are the values, and `dtype.str` describes the dtype completely."""
    return not dtype.hasobject and dtype.kind != "V" and np.dtype(dtype.str) == dtype


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


def _write_ipc(table: Any, sink: Any) -> None:
    with pa.ipc.new_stream(sink, table.schema, options=pa.ipc.IpcWriteOptions(use_threads=False)) as stream:
        stream.write_table(table)


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
