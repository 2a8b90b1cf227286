"""Blocks in shared memory: one copy to write them, none to read them.

An arena is anonymous memory that disappears with its last holder. Its size is only address space: pages are allocated
on first write, and are reused for later blocks. NumPy columns are stored as raw bytes, Arrow columns in Arrow's IPC
format, everything else pickled. Reading returns views, and the reader is notified when the last of them is gone.
`ArenaPool` lends the arenas of a service, and reuses them.
"""

from __future__ import annotations

import ctypes
import math
import mmap
import os
import pickle
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from itertools import count
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa

from paceline._core import system
from paceline.data.block import Block

ALIGNMENT = 64
MIN_ARENA_BYTES = 64 << 20
"""Large enough for nearly all blocks, so that any free arena fits any of them."""


class BlockLayout(msgspec.Struct, frozen=True, omit_defaults=True):
    """The positions of a block's columns in an arena."""

    rows: int
    nbytes: int
    names: list[str]
    arrays: list[tuple[str, str, list[int], int]] = []
    """Name, dtype, shape and offset."""
    arrow: tuple[int, int] | None = None
    """Start and end of the table with all Arrow columns."""
    objects: tuple[int, int] | None = None
    """Start and end of the pickled dict with all other columns."""


class ArenaBlockWriter:
    """Measures a block and writes it into an arena; `nbytes` is the space it needs."""

    def __init__(self, block: Block) -> None:
        self._block = block
        self._raw: list[tuple[np.ndarray[Any, Any], int]] = []
        arrays: list[tuple[str, str, list[int], int]] = []
        objects: dict[str, Any] = {}
        arrow: dict[str, Any] = {}
        end = 0
        for name, values in block.columns.items():
            if not isinstance(values, np.ndarray):
                arrow[name] = values
            elif _is_plain(values.dtype):
                arrays.append((name, values.dtype.str, list(values.shape), end))
                self._raw.append((values, end))
                end += _align(values.nbytes)
            else:
                objects[name] = values
        self._table = pa.table(arrow) if arrow else None
        self._pickled = pickle.dumps(objects, protocol=5) if objects else b""
        arrow_at = objects_at = None
        if self._table is not None:
            size = _ipc_size(self._table)
            arrow_at = (end, end + size)
            end += _align(size)
        if objects:
            objects_at = (end, end + len(self._pickled))
            end += _align(len(self._pickled))
        self.layout = BlockLayout(block.num_rows, end, list(block.columns), arrays, arrow_at, objects_at)

    @property
    def nbytes(self) -> int:
        return self.layout.nbytes

    def write_into(self, memory: mmap.mmap) -> None:
        for values, offset in self._raw:
            if values.size:
                np.copyto(np.ndarray(values.shape, values.dtype, memory, offset), values)
        if self.layout.arrow is not None:
            begin, end = self.layout.arrow
            target = (ctypes.c_char * (end - begin)).from_buffer(memory, begin)
            with pa.FixedSizeBufferWriter(pa.py_buffer(target)) as sink:
                _write_ipc(self._table, sink)
        if self.layout.objects is not None:
            begin, end = self.layout.objects
            memory[begin:end] = self._pickled


def read_block(layout: BlockLayout, memory: mmap.mmap, released: Callable[[], None], *, writable: bool) -> Block:
    """Return the block as views of the memory; `released` is called when the last view is gone."""
    base: Any = (ctypes.c_char * layout.nbytes).from_buffer(memory)
    # Not at interpreter exit: the operating system releases everything then.
    weakref.finalize(base, released).atexit = False
    columns: dict[str, Any] = {}
    for name, dtype, shape, offset in layout.arrays:
        array: np.ndarray[Any, Any] = np.ndarray(tuple(shape), np.dtype(dtype), base, offset)
        array.flags.writeable = writable
        columns[name] = array
    if layout.arrow is not None:
        begin, end = layout.arrow
        with pa.ipc.open_stream(pa.py_buffer(base).slice(begin, end - begin)) as stream:
            table = stream.read_all()
        columns |= zip(table.schema.names, table.columns, strict=True)
    if layout.objects is not None:
        begin, end = layout.objects
        columns |= pickle.loads(memoryview(base)[begin:end])  # noqa: S301
    return Block({name: columns[name] for name in layout.names}, num_rows=layout.rows)


def create_arena(nbytes: int) -> tuple[int, int]:
    """Create an arena of at least `nbytes`; return its descriptor and its size."""
    size = max(MIN_ARENA_BYTES, math.ceil(nbytes / mmap.PAGESIZE) * mmap.PAGESIZE)
    fd = system.create_anonymous_file("paceline-block")
    try:
        os.ftruncate(fd, size)
    except BaseException:
        os.close(fd)
        raise
    return fd, size


def map_arena(fd: int) -> mmap.mmap:
    """Map an arena into this process. Closes the descriptor: the mapping does not need it."""
    try:
        return mmap.mmap(fd, 0)
    finally:
        os.close(fd)


def _is_plain(dtype: np.dtype[Any]) -> bool:
    """Whether the raw bytes are the values, and `dtype.str` describes the dtype completely."""
    return not dtype.hasobject and dtype.kind != "V" and np.dtype(dtype.str) == dtype


def _align(nbytes: int) -> int:
    return nbytes + -nbytes % ALIGNMENT


def _ipc_size(table: Any) -> int:
    sink = pa.MockOutputStream()
    _write_ipc(table, sink)
    return int(sink.size())


def _write_ipc(table: Any, sink: Any) -> None:
    with pa.ipc.new_stream(sink, table.schema, options=pa.ipc.IpcWriteOptions(use_threads=False)) as stream:
        stream.write_table(table)


@dataclass
class PooledArena:
    number: int
    fd: int
    size: int
    touched_bytes: int = 0
    """The most that was ever written to it, which is the memory it occupies."""


class ArenaPool:
    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._numbers = count(1)
        self._free: list[PooledArena] = []
        self._used: dict[int, PooledArena] = {}
        self.freed: list[int] = []
        """Arenas freed since the last look; processes that have mapped them must unmap them."""

    def take_arena(self, nbytes: int) -> PooledArena:
        """Take an arena with space for `nbytes`: the most recently used one, which is most likely still cached."""
        for index in range(len(self._free) - 1, -1, -1):
            if self._free[index].size >= nbytes:
                pooled = self._free.pop(index)
                break
        else:
            fd, size = create_arena(nbytes)
            pooled = PooledArena(next(self._numbers), fd, size)
        pooled.touched_bytes = max(pooled.touched_bytes, nbytes)
        self._used[pooled.number] = pooled
        return pooled

    def fd(self, number: int) -> int:
        return self._used[number].fd

    def return_arena(self, number: int) -> None:
        self._free.append(self._used.pop(number))
        free_bytes = sum(each.touched_bytes for each in self._free)
        while free_bytes > self._limit:
            oldest = self._free.pop(0)
            free_bytes -= oldest.touched_bytes
            self._free_arena(oldest)

    def close(self) -> None:
        """Existing views stay valid."""
        for each in self._free:
            self._free_arena(each)
        for each in self._used.values():
            os.close(each.fd)
        self._free, self._used = [], {}

    def _free_arena(self, each: PooledArena) -> None:
        # Mappings in other processes would keep the memory until they are notified, and nobody reads it any more.
        os.ftruncate(each.fd, 0)
        os.close(each.fd)
        self.freed.append(each.number)
