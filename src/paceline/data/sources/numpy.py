"""NumPy's files: `.npy`, whose rows are those of its array, and `.npz`, whose arrays are columns.

An array that is large is read a range of rows at a time, so its ranges are units of their own. Objects are pickled in
these files, so they are not read.
"""

from __future__ import annotations

import zipfile
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from paceline._storage.trouble import in_short
from paceline.data.block import Block, Schema
from paceline.data.expressions import Expr
from paceline.data.files import File
from paceline.data.source import Unit
from paceline.data.sources.media import MediaFiles, MediaUnit, UnfitError, decoding, labelled

EXTENSIONS = ("npy", "npz")

_UNIT_BYTES = 32 << 20
_BLOCK_BYTES = 8 << 20


@dataclass(frozen=True)
class Layout:
    """Where the array of an `.npy` file lies in it."""

    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    begins: int
    """The byte of the file with its first element."""

    @property
    def row_bytes(self) -> int:
        return int(np.prod(self.shape[1:], dtype=np.int64)) * self.dtype.itemsize


def layout(file: File, opened: Any) -> Layout | None:
    """From the header; None for an array that does not lie there row after row."""
    version = np.lib.format.read_magic(opened)
    read = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}.get(version)
    if read is None:
        return None
    shape, fortran, dtype = read(opened)
    if dtype.hasobject:
        raise UnfitError("its elements are Python objects, which only unpickling could bring back")
    if not shape:
        raise UnfitError("it holds a single value, not an array with rows")
    found = Layout(shape, dtype, opened.tell())
    if file.size and file.size < found.begins + shape[0] * found.row_bytes:
        expected = found.begins + shape[0] * found.row_bytes
        raise UnfitError(f"it has {file.size} bytes and should have {expected}: it was cut off")
    return None if fortran and len(shape) > 1 else found


@dataclass(frozen=True)
class NumpyFiles:
    """A source: a large array gives several units."""

    files: MediaFiles

    @property
    def name(self) -> str:
        return self.files.name

    def units(self) -> Sequence[Unit]:
        units: list[Unit] = []
        for unit in self.files.units():
            assert isinstance(unit, MediaUnit)
            units += self._split(unit) if len(unit.files) == 1 and self.files.num_units is None else [unit]
        return units

    def _split(self, unit: MediaUnit) -> list[Unit]:
        (file,) = unit.files
        if file.size <= _UNIT_BYTES or file.path.lower().endswith(".npz"):
            return [unit]
        with decoding(file, "a NumPy array"), file.open() as opened:
            found = layout(file, opened)
        if found is None or not found.row_bytes:
            return [unit]
        step = max(1, _UNIT_BYTES // found.row_bytes)
        return [
            Rows(file, found, begin, min(begin + step, found.shape[0]), unit.include_paths, unit.partition)
            for begin in range(0, found.shape[0], step)
        ]

    def schema(self) -> Schema | None:
        return None

    def projected(self, columns: Sequence[str]) -> None:
        return None

    def pruned(self, predicate: Expr) -> None:
        return None


@dataclass(frozen=True)
class Arrays:
    """Reads whole files."""

    unit_bytes: int = _UNIT_BYTES

    def blocks(self, file: File) -> Iterator[Block]:
        with decoding(file, "a NumPy array"), file.open() as opened:
            if opened.read(4) == b"PK\x03\x04":
                yield from self._archive(opened)
                return
            opened.seek(0)
            found = layout(file, opened)
            if found is None:
                opened.seek(0)
                yield Block({"data": np.load(opened, allow_pickle=False)})
                return
            yield from _rows_of(file, opened, found, 0, found.shape[0])

    def _archive(self, opened: Any) -> Iterator[Block]:
        opened.seek(0)
        try:
            with np.load(opened, allow_pickle=False) as archive:
                columns = {name: archive[name] for name in archive.files}
        except (zipfile.BadZipFile, zlib.error) as error:
            raise UnfitError(in_short(error)) from error
        if columns:
            yield Block(columns)

    def num_rows(self, file: File) -> int | None:
        return None

    def num_bytes(self, file: File) -> int | None:
        return file.size

    def schema(self) -> Schema | None:
        return None

    def projected(self, columns: Sequence[str]) -> None:
        return None


@dataclass(frozen=True)
class Rows:
    """A unit: a range of the rows of one file."""

    file: File
    layout: Layout
    begin: int
    end: int
    include_paths: bool
    partition: tuple[Any, ...]

    @property
    def name(self) -> str:
        return f"{self.file.name} (rows {self.begin} to {self.end - 1})"

    @property
    def num_rows(self) -> int | None:
        return self.end - self.begin

    @property
    def num_bytes(self) -> int | None:
        return (self.end - self.begin) * self.layout.row_bytes

    def read(self) -> Iterator[Block]:
        with decoding(self.file, "a NumPy array"), self.file.open() as opened:
            for block in _rows_of(self.file, opened, self.layout, self.begin, self.end):
                yield labelled([(self.file, block)], self.include_paths, self.partition)


def _rows_of(file: File, opened: Any, found: Layout, begin: int, end: int) -> Iterator[Block]:
    step = max(1, _BLOCK_BYTES // max(found.row_bytes, 1))
    mapped = None
    if file.local is not None and found.row_bytes and end > begin:
        mapped = np.memmap(file.local, found.dtype, "r", found.begins, found.shape)
    for first in range(begin, end, step):
        last = min(first + step, end)
        if mapped is not None:
            yield Block({"data": mapped[first:last].view(np.ndarray)})
            continue
        opened.seek(found.begins + first * found.row_bytes)
        content = opened.read((last - first) * found.row_bytes)
        if len(content) < (last - first) * found.row_bytes:
            raise UnfitError(f"it ends within rows {first} to {last - 1}: it was cut off")
        yield Block({"data": np.frombuffer(content, found.dtype).reshape(last - first, *found.shape[1:])})
