"""Zarr stores: a row per chunk of an array, or per range of the first axis that several arrays share.

Chunks are those of the store, or larger or smaller ones that the user asks for. A unit is some consecutive rows.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from paceline._core.arguments import bad_value, check_names, is_int
from paceline._core.lazy_imports import import_extra
from paceline.data.block import Block
from paceline.data.column import object_array
from paceline.data.planning.plan import PlainSource
from paceline.data.sources.memory import unit_ranges

Slices = tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class ZarrStore:
    path: str
    filesystem: Any = None
    """An fsspec filesystem; None: chosen by the path."""

    def open(self) -> Any:
        zarr = import_extra("zarr", "read_zarr")
        if self.filesystem is None:
            return zarr.open(self.path, mode="r")
        store = zarr.storage.FsspecStore.from_mapper(self.filesystem.get_mapper(self.path))
        return zarr.open(store, mode="r")


@dataclass(frozen=True)
class ZarrChunk:
    array: str
    index: tuple[int, ...]
    slices: Slices
    num_bytes: int
    overlap: int = 0
    """How many of its elements, along the first axis, belong to the next row."""


@dataclass(frozen=True)
class ZarrUnit:
    store: ZarrStore
    name: str
    chunks: tuple[ZarrChunk, ...]
    """Those of one row, if rows are aligned."""
    num_bytes: int
    is_aligned: bool

    @property
    def num_rows(self) -> int:
        return 1 if self.is_aligned else len(self.chunks)

    def read(self) -> Iterator[Block]:
        opened = self.store.open()
        values = {chunk: _read_chunk(opened, chunk) for chunk in self.chunks} if self.is_aligned else {}
        if self.is_aligned:
            begin, stop = self.chunks[0].slices[0]
            stop -= self.chunks[0].overlap
            columns = {chunk.array or "data": value[None] for chunk, value in values.items()}
            yield Block({"t_start": np.array([begin]), "t_stop": np.array([stop]), **columns})
            return
        for chunk in self.chunks:
            yield Block(
                {
                    "array": np.array([chunk.array], object),
                    "chunk_index": object_array([np.array(chunk.index)]),
                    "chunk_slices": object_array([np.array(chunk.slices).reshape(-1, 2)]),
                    "chunk": object_array([_read_chunk(opened, chunk)]),
                }
            )


def _read_chunk(opened: Any, chunk: ZarrChunk) -> Any:
    array = opened[chunk.array] if chunk.array else opened
    return np.asarray(array[tuple(slice(*bounds) for bounds in chunk.slices)])


@dataclass(frozen=True)
class ZarrSource(PlainSource):
    name: str
    store: ZarrStore
    rows: tuple[tuple[ZarrChunk, ...], ...]
    """The chunks of each row."""
    is_aligned: bool
    num_units: int | None = None

    def units(self) -> Sequence[ZarrUnit]:
        if self.is_aligned:
            return [self._make_unit(row) for row in self.rows]
        size = sum(row[0].num_bytes for row in self.rows)
        ranges = unit_ranges(len(self.rows), size, self.num_units, 16)
        return [self._make_unit([row[0] for row in self.rows[begin:end]]) for begin, end in ranges]

    def _make_unit(self, chunks: Sequence[ZarrChunk]) -> ZarrUnit:
        first = chunks[0]
        name = f"{self.store.path} ({first.array or 'array'} from {[begin for begin, _ in first.slices]})"
        return ZarrUnit(self.store, name, tuple(chunks), sum(chunk.num_bytes for chunk in chunks), self.is_aligned)


def find_arrays(store: ZarrStore, paths: Sequence[str] | None, scan: bool) -> dict[str, Any]:
    """The arrays by path: those that are named, or all."""
    opened = store.open()
    if not hasattr(opened, "arrays"):
        if paths is not None:
            raise bad_value("array_paths", f"None, as {store.path} is an array and no group", paths)
        return {"": opened}
    if paths is not None:
        found = {}
        for path in check_names("array_paths", paths):
            try:
                found[path] = opened[path]
            except KeyError:
                raise bad_value("each of array_paths", f"an array in {store.path}", path) from None
        return found
    if opened.metadata.consolidated_metadata is None and not scan:
        raise ValueError(
            f"{store.path} has no consolidated metadata, so all of it would be listed to find the arrays\n\n"
            "hint: name them with array_paths=[...], or set allow_full_metadata_scan=True"
        )
    members = opened.members(max_depth=None)
    return {path: each for path, each in sorted(members, key=lambda pair: pair[0]) if hasattr(each, "chunks")}


def cut_arrays(arrays: Mapping[str, Any], chunk_shapes: Any) -> list[tuple[ZarrChunk, ...]]:
    """A row for each chunk of each array."""
    rows: list[tuple[ZarrChunk, ...]] = []
    for path, array in arrays.items():
        shape = _choose_chunk(path, array, chunk_shapes)
        counts = [math.ceil(size / each) for size, each in zip(array.shape, shape, strict=True)]
        for index in itertools.product(*map(range, counts)):
            slices = tuple(
                (number * each, min((number + 1) * each, size))
                for number, each, size in zip(index, shape, array.shape, strict=True)
            )
            rows.append((_make_chunk(path, array, index, slices),))
    return rows


def cut_aligned(arrays: Mapping[str, Any], chunk_shapes: Any, overlap: int) -> list[tuple[ZarrChunk, ...]]:
    """A row for each range of the first axis, with `overlap` more elements from the next one."""
    lengths = {path: array.shape[0] if array.shape else 0 for path, array in arrays.items()}
    if len({*lengths.values()}) != 1:
        raise ValueError(f"align_axis_0=True needs arrays of one length, got {lengths}\n\nhint: array_paths=[...]")
    length = next(iter(lengths.values()))
    steps = {_choose_chunk(path, array, chunk_shapes)[0] for path, array in arrays.items()}
    step = min(steps)
    if len(steps) > 1 and chunk_shapes is None:
        raise ValueError(
            f"align_axis_0=True needs arrays of one chunk length, got {sorted(steps)}\n\nhint: chunk_shapes=[n]"
        )
    rows = []
    for number, begin in enumerate(range(0, length, step)):
        own, stop = min(begin + step, length), min(begin + step + overlap, length)
        rows.append(
            tuple(
                _make_chunk(path, array, (number,), ((begin, stop), *((0, n) for n in array.shape[1:])), stop - own)
                for path, array in arrays.items()
            )
        )
    return rows


def _make_chunk(path: str, array: Any, index: tuple[int, ...], slices: Slices, overlap: int = 0) -> ZarrChunk:
    size = math.prod(stop - begin for begin, stop in slices) * array.dtype.itemsize
    return ZarrChunk(path, tuple(index), slices, size, overlap)


def _choose_chunk(path: str, array: Any, chunk_shapes: Any) -> tuple[int, ...]:
    """The shape of an array's chunks: the user's, of the first axes or of all, or its own."""
    chosen = chunk_shapes.get(path) if isinstance(chunk_shapes, Mapping) else chunk_shapes
    if chosen is None:
        return tuple(array.chunks)
    is_shape = isinstance(chosen, list | tuple) and all(is_int(each) and each >= 1 for each in chosen)
    if not is_shape or len(chosen) > len(array.shape):
        expected = f"at most {len(array.shape)} positive integers for {path or 'the array'}"
        raise bad_value("chunk_shapes", expected, chosen)
    return (*chosen, *array.chunks[len(chosen) :])
