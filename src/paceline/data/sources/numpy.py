"""NumPy files: `.npy`, whose rows are those of its array, and `.npz`, whose arrays are columns.

A large array is split into several units by ranges of rows. Object arrays are pickled in these files, and rejected
unless the user allows that.
"""

from __future__ import annotations

import zipfile
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from paceline._storage.store_errors import summarize_error
from paceline.data.block import Block
from paceline.data.planning.plan import Unit
from paceline.data.sources import media
from paceline.data.sources.files import InputFile, InvalidContentError, explain_read_errors
from paceline.data.sources.media import FileReader, MediaSource, MediaUnit
from paceline.data.sources.schemas import RowRangeUnit

EXTENSIONS = ("npy", "npz")

_UNIT_BYTES = 32 << 20
_BLOCK_BYTES = 8 << 20


@dataclass(frozen=True)
class NpyLayout:
    """The position of the array in an `.npy` file."""

    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    data_offset: int

    @property
    def row_bytes(self) -> int:
        return int(np.prod(self.shape[1:], dtype=np.int64)) * self.dtype.itemsize


def read_layout(file: InputFile, opened: Any, allow_pickle: bool = False) -> NpyLayout | None:
    """Read the header; None if the array is not stored row by row."""
    version = np.lib.format.read_magic(opened)
    read = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}.get(version)
    if read is None:
        return None
    shape, fortran, dtype = read(opened)
    if dtype.hasobject:
        if allow_pickle:
            return None
        raise InvalidContentError(
            "it has pickled Python objects, which are not loaded\n\n"
            "hint: read_numpy(allow_pickle=True) runs the code in them: only for files that you trust"
        )
    if not shape:
        raise InvalidContentError("it has a single value, not an array with rows")
    layout = NpyLayout(shape, dtype, opened.tell())
    if file.size and not file.is_packed and file.size < layout.data_offset + shape[0] * layout.row_bytes:
        expected = layout.data_offset + shape[0] * layout.row_bytes
        raise InvalidContentError(f"it is truncated: it has {file.size} of {expected} bytes")
    return None if fortran and len(shape) > 1 else layout


@dataclass(frozen=True)
class NumpySource(MediaSource):
    """A source in which a large array gives several units."""

    def units(self) -> Sequence[Unit]:
        units = super().units()
        return [part for unit in units for part in self._split_unit(unit)] if self.num_units is None else units

    def _split_unit(self, unit: MediaUnit) -> Sequence[Unit]:
        file, *others = unit.files
        if others or file.size <= _UNIT_BYTES or file.path.lower().endswith(".npz"):
            return [unit]
        with explain_read_errors(file, "a NumPy array"), file.open() as opened:
            layout = read_layout(file, opened, getattr(self.reader, "allow_pickle", False))
        if layout is None or not layout.row_bytes:
            return [unit]
        step = max(1, _UNIT_BYTES // layout.row_bytes)
        units: list[Unit] = []
        for begin in range(0, layout.shape[0], step):
            end = min(begin + step, layout.shape[0])
            name, num_bytes = f"{file.name} (rows {begin} to {end - 1})", (end - begin) * layout.row_bytes
            units.append(NumpyUnit(name, begin, end, num_bytes, file, layout, unit.include_paths, unit.partition))
        return units


@dataclass(frozen=True)
class NumpyReader(FileReader):
    allow_pickle: bool = False
    unit_bytes = _UNIT_BYTES

    def read_blocks(self, file: InputFile) -> Iterator[Block]:
        with explain_read_errors(file, "a NumPy array"), file.open() as opened:
            if opened.read(4) == b"PK\x03\x04":
                yield from self._read_archive(opened)
                return
            opened.seek(0)
            layout = read_layout(file, opened, self.allow_pickle)
            if layout is None:
                opened.seek(0)
                yield Block({"data": np.load(opened, allow_pickle=self.allow_pickle)})
                return
            yield from _read_rows(file, opened, layout, 0, layout.shape[0])

    def _read_archive(self, opened: Any) -> Iterator[Block]:
        opened.seek(0)
        try:
            with np.load(opened, allow_pickle=self.allow_pickle) as archive:
                columns = {name: archive[name] for name in archive.files}
        except (zipfile.BadZipFile, zlib.error) as error:
            raise InvalidContentError(summarize_error(error)) from error
        if columns:
            yield Block(columns)


@dataclass(frozen=True)
class NumpyUnit(RowRangeUnit):
    file: InputFile
    layout: NpyLayout
    include_paths: bool
    partition: tuple[Any, ...]

    def read(self) -> Iterator[Block]:
        with explain_read_errors(self.file, "a NumPy array"), self.file.open() as opened:
            for block in _read_rows(self.file, opened, self.layout, self.begin, self.end):
                yield media.with_origin_columns([(self.file, block)], self.include_paths, self.partition)


def _read_rows(file: InputFile, opened: Any, layout: NpyLayout, begin: int, end: int) -> Iterator[Block]:
    step = max(1, _BLOCK_BYTES // max(layout.row_bytes, 1))
    mapped = None
    if file.local_path is not None and layout.row_bytes and end > begin:
        mapped = np.memmap(file.local_path, layout.dtype, "r", layout.data_offset, layout.shape)
    for first in range(begin, end, step):
        last = min(first + step, end)
        if mapped is not None:
            yield Block({"data": mapped[first:last].view(np.ndarray)})
            continue
        opened.seek(layout.data_offset + first * layout.row_bytes)
        content = opened.read((last - first) * layout.row_bytes)
        if len(content) < (last - first) * layout.row_bytes:
            raise InvalidContentError(f"it is truncated within rows {first} to {last - 1}")
        yield Block({"data": np.frombuffer(content, layout.dtype).reshape(last - first, *layout.shape[1:])})
