"""Blocks in shared memory: one copy to write them, none to read them.

An arena is memory without a name that goes with its last holder. Its size is only address space: pages come into being
when they are first written, and are kept for the blocks to come. NumPy columns lie in it as they are, Arrow columns in
Arrow's own format, everything else pickled. What is read back are views, and it is known when the last of them is gone.
"""

from __future__ import annotations

import ctypes
import math
import mmap
import os
import pickle
import weakref
from collections.abc import Callable
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa

from paceline._core import system
from paceline.data.block import Block

ALIGNMENT = 64
LEAST_SIZE = 64 << 20
"""Of an arena: as much as nearly all blocks need, so that any free arena will do for any of them."""


class Layout(msgspec.Struct, frozen=True, omit_defaults=True):
    """Where in an arena the columns of a block lie."""

    rows: int
    nbytes: int
    names: list[str]
    arrays: list[tuple[str, str, list[int], int]] = []
    """Name, dtype, shape and offset."""
    arrow: tuple[int, int] | None = None
    """Where the table of all Arrow columns begins and ends."""
    objects: tuple[int, int] | None = None
    """The same of a pickled dict of all other columns."""


class Written:
    """A block that is about to be written: `nbytes` is the room it takes."""

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
                end += _aligned(values.nbytes)
            else:
                objects[name] = values
        self._table = pa.table(arrow) if arrow else None
        self._pickled = pickle.dumps(objects, protocol=5) if objects else b""
        arrow_at = objects_at = None
        if self._table is not None:
            size = _ipc_size(self._table)
            arrow_at = (end, end + size)
            end += _aligned(size)
        if objects:
            objects_at = (end, end + len(self._pickled))
            end += _aligned(len(self._pickled))
        self.layout = Layout(block.num_rows, end, list(block.columns), arrays, arrow_at, objects_at)

    @property
    def nbytes(self) -> int:
        return self.layout.nbytes

    def into(self, memory: mmap.mmap) -> None:
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


def read(layout: Layout, memory: mmap.mmap, released: Callable[[], None], *, writable: bool) -> Block:
    """The block as views of the memory; `released` is called when the last of them is gone."""
    base: Any = (ctypes.c_char * layout.nbytes).from_buffer(memory)
    # Not run when the interpreter ends: then the system releases everything.
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
        columns |= pickle.loads(memoryview(base)[begin:end])  # noqa: S301  by a process of ours, just now
    return Block({name: columns[name] for name in layout.names}, num_rows=layout.rows)


def made(nbytes: int) -> tuple[int, int]:
    """A new arena for so many bytes: its descriptor and its size."""
    size = max(LEAST_SIZE, math.ceil(nbytes / mmap.PAGESIZE) * mmap.PAGESIZE)
    fd = system.anonymous_file("paceline-block")
    try:
        os.ftruncate(fd, size)
    except BaseException:
        os.close(fd)
        raise
    return fd, size


def mapped(fd: int) -> mmap.mmap:
    """An arena in the memory of this process. The descriptor is closed: the mapping keeps what it needs."""
    try:
        return mmap.mmap(fd, 0)
    finally:
        os.close(fd)


def _is_plain(dtype: np.dtype[Any]) -> bool:
    """Whether the bytes of the values are the values, and the dtype can be told in a word."""
    return not dtype.hasobject and dtype.kind != "V" and np.dtype(dtype.str) == dtype


def _aligned(nbytes: int) -> int:
    return nbytes + -nbytes % ALIGNMENT


def _ipc_size(table: Any) -> int:
    sink = pa.MockOutputStream()
    _write_ipc(table, sink)
    return int(sink.size())


def _write_ipc(table: Any, sink: Any) -> None:
    with pa.ipc.new_stream(sink, table.schema, options=pa.ipc.IpcWriteOptions(use_threads=False)) as stream:
        stream.write_table(table)
