"""Blocks as bytes in a file or a piece of memory, from where they are read back without a copy.

A header says what lies where. Arrays of NumPy lie there as they are, Arrow data in Arrow's own format for exchange, and
whatever neither can hold as a pickle. Everything begins at a multiple of 64 bytes.
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
_SMALL = 256 << 10
"""A smaller piece is read, not mapped: a process can have only so many mappings."""


class _Array(msgspec.Struct, array_like=True):
    name: str
    dtype: str
    shape: tuple[int, ...]
    offset: int


class _Other(msgspec.Struct, array_like=True):
    """Columns that lie together: in Arrow's format, or pickled."""

    offset: int
    length: int


class _Header(msgspec.Struct, array_like=True):
    num_rows: int
    names: list[str]
    arrays: list[_Array]
    arrow: _Other | None
    pickled: _Other | None


def written(fd: int, offset: int, block: Block, order: np.ndarray[Any, Any] | None = None) -> int:
    """Write a block at `offset`, its rows in this order; how many bytes it took."""
    return _laid(block, order, lambda end: lambda data, at: _put(fd, data, offset + at))


def as_bytes(block: Block, order: np.ndarray[Any, Any] | None = None) -> np.ndarray[Any, Any]:
    """A block in memory of its own."""
    rooms: list[np.ndarray[Any, Any]] = []

    def opened(end: int) -> Callable[[Any, int], None]:
        rooms.append(np.empty(end, np.uint8))
        view = rooms[0].data

        def put(data: Any, at: int) -> None:
            part = memoryview(data).cast("B")
            view[at : at + part.nbytes] = part

        return put

    _laid(block, order, opened)
    return rooms[0]


def _laid(block: Block, order: np.ndarray[Any, Any] | None, opened: Callable[[int], Callable[[Any, int], None]]) -> int:
    """Put a block where `opened` says, once it knows how long it is; how many bytes that was."""
    num_rows = block.num_rows if order is None else len(order)
    plain = {name: values for name, values in block.columns.items() if _is_plain(values)}
    others = {name: values for name, values in block.columns.items() if name not in plain}
    tabular = {name: values for name, values in others.items() if not isinstance(values, np.ndarray)}
    objects = {name: values for name, values in others.items() if isinstance(values, np.ndarray)}
    arrow = _serialized(Block(tabular), order) if tabular else None
    pickled = pickle.dumps(Block(objects).take(order).columns if order is not None else objects) if objects else None
    header = _Header(num_rows, list(block.columns), [], None, None)
    end = _aligned(128 + _length(header) + sum(_length(_array(name, values)) for name, values in plain.items()))
    room = last = end
    for name, values in plain.items():
        header.arrays.append(_Array(name, values.dtype.str, (num_rows, *values.shape[1:]), end))
        last = end + num_rows * values.dtype.itemsize * math.prod(values.shape[1:])
        end = _aligned(last)
    if arrow is not None:
        header.arrow = _Other(end, arrow.size)
        last = end + arrow.size
        end = _aligned(last)
    if pickled is not None:
        header.pickled = _Other(end, len(pickled))
        last = end + len(pickled)
        end = _aligned(last)
    head = msgspec.msgpack.encode(header)
    assert len(head) + 8 <= room, "the header of a block is larger than the room for it"
    put = opened(end)
    put((len(head).to_bytes(8, "little") + head).ljust(room, b"\0"), 0)
    scratch: dict[tuple[Any, ...], np.ndarray[Any, Any]] = {}
    for placed, values in zip(header.arrays, plain.values(), strict=True):
        put(_in_order(values, order, scratch), placed.offset)
    if arrow is not None and header.arrow is not None:
        put(arrow, header.arrow.offset)
    if pickled is not None and header.pickled is not None:
        put(pickled, header.pickled.offset)
    # The padding after the last column belongs to the block, and is written: to set the length of the file would cut
    # off what another process has written beyond this block meanwhile.
    put(bytes(end - last), last)
    return end


def read(fd: int, offset: int, length: int) -> Block:
    """The block that was written there; large ones are views of the file, which may be closed meanwhile."""
    if length < _SMALL or offset % PAGE:
        return unpacked(_got(fd, offset, length))
    return unpacked(mmap.mmap(fd, length, access=mmap.ACCESS_READ, offset=offset))


def unpacked(buffer: Any) -> Block:
    """A block from bytes that begin with it; its columns are views of them."""
    view = memoryview(buffer)
    header = msgspec.msgpack.decode(view[8 : 8 + int.from_bytes(view[:8], "little")], type=_Header)
    found: dict[str, Column] = {}
    for array in header.arrays:
        count = math.prod(array.shape)
        flat = np.frombuffer(view, np.dtype(array.dtype), count, array.offset) if count else np.empty(0, array.dtype)
        found[array.name] = flat.reshape(array.shape)
    if header.arrow is not None:
        part = pa.py_buffer(view[header.arrow.offset : header.arrow.offset + header.arrow.length])
        table = pa.ipc.open_stream(part).read_all()
        found |= dict(zip(table.schema.names, table.columns, strict=True))
    if header.pickled is not None:
        part = view[header.pickled.offset : header.pickled.offset + header.pickled.length]
        found |= pickle.loads(part)  # noqa: S301 - what a process of this very dataset has written
    return Block({name: found[name] for name in header.names}, num_rows=header.num_rows)


def numeric(block: Block) -> Block:
    """The same with Arrow's numbers as NumPy's, where none is null: those are moved about several times faster."""
    return Block({name: _as_numbers(values) for name, values in block.columns.items()}, num_rows=block.num_rows)


@dataclass(frozen=True)
class Lying:
    """Some rows of a block where they lie: a column can be read without the others."""

    fd: int
    offset: int
    length: int
    begin: int
    stop: int

    @cached_property
    def header(self) -> _Header:
        start = os.pread(self.fd, PAGE, self.offset)
        length = int.from_bytes(start[:8], "little")
        return msgspec.msgpack.decode(
            start[8 : 8 + length] if length + 8 <= len(start) else _got(self.fd, self.offset + 8, length), type=_Header
        )

    @cached_property
    def arrays(self) -> dict[str, _Array]:
        return {array.name: array for array in self.header.arrays}

    @property
    def num_rows(self) -> int:
        return self.stop - self.begin

    def read_into(self, name: str, room: memoryview) -> None:
        """A column's bytes, into as many."""
        row_bytes = room.nbytes // self.num_rows
        _fill(self.fd, self.offset + self.arrays[name].offset + self.begin * row_bytes, room)

    def others(self) -> Block:
        """The columns that cannot be read so."""
        if self.header.arrow is None and self.header.pickled is None:
            return Block({}, num_rows=self.num_rows)
        block = read(self.fd, self.offset, self.length).slice(self.begin, self.stop)
        return block.drop(self.arrays)


def sorted_by(parts: Sequence[Lying], key: str) -> Block:
    """The rows of all parts by a column of numbers, without that column.

    Each column is read into a memory that is used again for the next, and taken from there: nothing is mapped, and
    little memory is touched.
    """
    num_rows = sum(part.num_rows for part in parts)

    def filled(name: str, room: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        view, passed, row_bytes = _bytes_of(room), 0, room.nbytes // num_rows
        for part in parts:
            end = passed + part.num_rows * row_bytes
            part.read_into(name, view[passed:end])
            passed = end
        return room

    order = np.argsort(filled(key, np.empty(num_rows, parts[0].arrays[key].dtype)))
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
        # One piece of memory for all: the system gives large ones in large pages.
        made = np.empty((len(group), num_rows, *shape), dtype)
        room = np.empty((num_rows, *shape), dtype)
        for name, values in zip(group, made, strict=True):
            # "clip" changes nothing about good indices, and spares NumPy a copy to fall back to.
            columns[name] = np.take(filled(name, room), order, axis=0, out=values, mode="clip")
    if mixed:
        columns |= Block.concat(_columns(part, mixed) for part in parts).take(order).columns
    return Block({name: columns[name] for name in names}, num_rows=num_rows)


def _columns(part: Lying, names: Sequence[str]) -> Block:
    found = dict(part.others().columns)
    for name in names:
        if (array := part.arrays.get(name)) is not None:
            room = np.empty((part.num_rows, *array.shape[1:]), array.dtype)
            part.read_into(name, _bytes_of(room))
            found[name] = room
    return Block({name: found[name] for name in names if name in found}, num_rows=part.num_rows)


def _as_numbers(values: Column) -> Column:
    if isinstance(values, np.ndarray) or values.null_count or not len(values):
        return values
    if not (pa.types.is_integer(values.type) or pa.types.is_floating(values.type)):
        return values
    return values.chunk(0).to_numpy() if values.num_chunks == 1 else values.to_numpy()


def _is_plain(values: Column) -> bool:
    return isinstance(values, np.ndarray) and values.dtype.kind in "biufcmM"


def _array(name: str, values: np.ndarray[Any, Any]) -> _Array:
    return _Array(name, values.dtype.str, values.shape, 1 << 62)


def _length(part: msgspec.Struct) -> int:
    return len(msgspec.msgpack.encode(part))


def _aligned(number: int) -> int:
    return -(-number // ALIGNMENT) * ALIGNMENT


def _in_order(
    values: np.ndarray[Any, Any], order: np.ndarray[Any, Any] | None, scratch: dict[tuple[Any, ...], Any]
) -> memoryview:
    if order is not None:
        shape = (len(order), *values.shape[1:])
        room = scratch.get((values.dtype, shape))
        if room is None:
            room = scratch[values.dtype, shape] = np.empty(shape, values.dtype)
        # "clip" changes nothing about good indices, and spares NumPy a copy to fall back to.
        values = np.take(values, order, axis=0, out=room, mode="clip")
    return _bytes_of(np.ascontiguousarray(values))


def _serialized(block: Block, order: np.ndarray[Any, Any] | None) -> Any:
    table = pa.table(block.columns)
    if order is not None:
        table = table.take(pa.array(order))
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        for batch in table.combine_chunks().to_batches():
            writer.write_batch(batch)
    return sink.getvalue()


def _put(fd: int, data: Any, offset: int) -> None:
    view = memoryview(data)
    while view.nbytes:
        done = os.pwrite(fd, view[: 1 << 30], offset)
        view, offset = view[done:], offset + done


def _got(fd: int, offset: int, length: int) -> bytearray:
    data = bytearray(length)
    _fill(fd, offset, memoryview(data))
    return data


def _fill(fd: int, offset: int, view: memoryview) -> None:
    passed = 0
    while passed < view.nbytes:
        done = os.preadv(fd, [view[passed:]], offset + passed)
        if not done:
            raise EOFError(f"rows that were set aside end after {passed} of {view.nbytes} bytes")
        passed += done


def _bytes_of(values: np.ndarray[Any, Any]) -> memoryview:
    return values.reshape(-1).view(np.uint8).data
