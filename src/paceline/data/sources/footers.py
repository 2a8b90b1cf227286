"""The footers of Parquet files: read by many threads at once, kept for as long as there is room, and what they tell."""

from __future__ import annotations

import os
import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from paceline.data.files import File, reading
from paceline.data.sources.pruning import Bounds, family_of

PARQUET = "Parquet"
_THREADS = 32
_ROOM = 128 << 20


class _Kept:
    """Footers by file, as it is now: the least recently used make room."""

    def __init__(self, room: int = _ROOM) -> None:
        self._room = room
        self._lock = threading.Lock()
        self._footers: OrderedDict[Any, Any] = OrderedDict()
        self._bytes = 0

    def of(self, file: File) -> Any:
        key = (id(file.place), file.path, file.size, file.local and os.stat(file.local).st_mtime_ns)
        with self._lock:
            if key in self._footers:
                self._footers.move_to_end(key)
                return self._footers[key]
        with file.open() as opened:
            footer = pq.read_metadata(opened)
        with self._lock:
            if key not in self._footers:
                self._footers[key] = footer
                self._bytes += footer.serialized_size
            while self._bytes > self._room and len(self._footers) > 1:
                self._bytes -= self._footers.popitem(last=False)[1].serialized_size
        return footer


_kept = _Kept()


def footer(file: File) -> Any:
    """A file's `pyarrow.parquet.FileMetaData`."""
    with reading(file, PARQUET):
        return _kept.of(file)


def footers(files: Sequence[File]) -> list[Any]:
    if len(files) == 1:
        return [footer(files[0])]
    with ThreadPoolExecutor(min(_THREADS, len(files)), thread_name_prefix="paceline-footers") as pool:
        return list(pool.map(footer, files))


@dataclass(frozen=True, eq=False)
class Contents:
    """What the footers of some files tell; looked at once for all datasets that are made of one."""

    files: tuple[File, ...]

    @cached_property
    def footers(self) -> list[Any]:
        return footers(self.files)

    @cached_property
    def schemas(self) -> list[Any]:
        """Of each file; those that are alike are one object."""
        found: list[Any] = []
        for file, metadata in zip(self.files, self.footers, strict=True):
            with reading(file, PARQUET):
                schema = metadata.schema.to_arrow_schema().remove_metadata()
            if found and schema.equals(found[-1], check_metadata=True):
                schema = found[-1]
            elif len(set(schema.names)) < len(schema.names):
                twice = next(name for name in schema.names if schema.names.count(name) > 1)
                raise ValueError(f"{file} has two columns called {twice!r}: a dataset needs a name for each")
            found.append(schema)
        return found

    @cached_property
    def sizes(self) -> list[list[dict[str, int]]]:
        """About how much memory each column of each row group of each file takes, once read."""
        return [
            [column_bytes(metadata.row_group(index), schema) for index in range(metadata.num_row_groups)]
            for metadata, schema in zip(self.footers, self.schemas, strict=True)
        ]

    def __getstate__(self) -> dict[str, Any]:
        return {"files": self.files}


def column_bytes(group: Any, schema: Any) -> dict[str, int]:
    """By column, about how much memory a row group takes, once read."""
    sizes = dict.fromkeys(schema.names, 0)
    for number in range(group.num_columns):
        chunk = group.column(number)
        path = chunk.path_in_schema
        name = path if path in sizes else path.partition(".")[0]
        sizes[name] += max(chunk.total_uncompressed_size, _fixed_width(schema, path) * group.num_rows)
    return sizes


def _fixed_width(schema: Any, name: str) -> int:
    """Bytes of a value; 0 where they differ. Repeated values are stored once, so what is stored may be far less."""
    index = schema.get_field_index(name)
    if index < 0 or not pa.types.is_primitive(schema.field(index).type):
        return 0
    return max(1, int(schema.field(index).type.bit_width) // 8)


def group_bounds(file: File, metadata: Any, index: int, schema: Any, target: Any) -> Callable[[str], Bounds]:
    """What is known of the columns in a row group, for `can_hold`. `target` is the schema that rows are brought to."""
    group = metadata.row_group(index)
    partition = dict(file.partition)

    def bounds(name: str) -> Bounds:
        if name in partition:
            return constant(partition[name])
        if name not in target.names:
            return Bounds()
        if name not in schema.names:  # other files have it
            return Bounds(nulls=True, values=False)
        kind = schema.field(name).type
        if family_of(kind) is None or family_of(kind) != family_of(target.field(name).type):
            return Bounds()
        chunks = (group.column(number) for number in range(group.num_columns))
        chunk = next(chunk for chunk in chunks if chunk.path_in_schema == name)
        return _bounds(chunk.statistics, kind, group.num_rows)

    return bounds


def constant(value: Any) -> Bounds:
    """A column that has one value throughout: a whole number, a text or null."""
    if value is None:
        return Bounds(nulls=True, values=False)
    return Bounds(nulls=False, family="whole" if isinstance(value, int) else "text", low=value, high=value)


def _bounds(statistics: Any, kind: Any, num_rows: int) -> Bounds:
    if statistics is None:
        return Bounds()
    count = statistics.null_count if statistics.has_null_count else None
    nulls, values = count is None or count > 0, count is None or count < num_rows
    if not statistics.has_min_max:
        return Bounds(nulls, values)
    try:
        low, high = statistics.min, statistics.max
    except (ValueError, OverflowError):  # cut in the middle of a character, or a date before Python's first
        return Bounds(nulls, values)
    return Bounds(nulls, values, family_of(kind), low, high)
