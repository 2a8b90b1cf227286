"""The footers of Parquet files: read by many threads, cached up to a size, and interpreted."""

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

from paceline.data.sources.files import InputFile, explain_read_errors
from paceline.data.sources.pruning import ColumnBounds, Family, comparison_family
from paceline.data.sources.schemas import check_unique_names

PARQUET = "Parquet"
_THREADS = 32
_LOCAL_THREADS = 4
"""Reading local footers takes no waiting, and each thread has memory of its own."""
_CACHE_BYTES = 128 << 20


class _FooterCache:
    """Footers by file and version; the least recently used are evicted."""

    def __init__(self, room: int = _CACHE_BYTES) -> None:
        self._room = room
        self._lock = threading.Lock()
        self._footers: OrderedDict[Any, Any] = OrderedDict()
        self._bytes = 0

    def get_footer(self, file: InputFile) -> Any:
        key = (id(file.fs_handle), file.path, file.size, file.local_path and os.stat(file.local_path).st_mtime_ns)
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


_cache = _FooterCache()


def read_footer(file: InputFile) -> Any:
    """A file's `pyarrow.parquet.FileMetaData`."""
    with explain_read_errors(file, PARQUET):
        return _cache.get_footer(file)


def read_footers(files: Sequence[InputFile]) -> list[Any]:
    if len(files) == 1:
        return [read_footer(files[0])]
    most = _LOCAL_THREADS if all(file.local_path is not None for file in files) else _THREADS
    with ThreadPoolExecutor(min(most, len(files)), thread_name_prefix="paceline-footers") as pool:
        return list(pool.map(read_footer, files))


@dataclass(frozen=True, eq=False)
class ParquetContents:
    """What the footers of some files say; computed once for all datasets derived from one."""

    files: tuple[InputFile, ...]

    @cached_property
    def footers(self) -> list[Any]:
        return read_footers(self.files)

    @cached_property
    def schemas(self) -> list[Any]:
        """The schema of each file; equal schemas are one object."""
        schemas: list[Any] = []
        for file, metadata in zip(self.files, self.footers, strict=True):
            with explain_read_errors(file, PARQUET):
                schema = metadata.schema.to_arrow_schema().remove_metadata()
            if schemas and schema.equals(schemas[-1], check_metadata=True):
                schema = schemas[-1]
            else:
                check_unique_names(file, schema.names)
            schemas.append(schema)
        return schemas

    @cached_property
    def sizes(self) -> list[list[dict[str, int]]]:
        """The approximate memory of each column, per row group and file, once read."""
        return [
            [column_bytes(metadata.row_group(index), schema) for index in range(metadata.num_row_groups)]
            for metadata, schema in zip(self.footers, self.schemas, strict=True)
        ]

    def __getstate__(self) -> dict[str, Any]:
        return {"files": self.files}


def column_bytes(group: Any, schema: Any) -> dict[str, int]:
    sizes = dict.fromkeys(schema.names, 0)
    for number in range(group.num_columns):
        chunk = group.column(number)
        path = chunk.path_in_schema
        name = path if path in sizes else path.partition(".")[0]
        sizes[name] += max(chunk.total_uncompressed_size, _fixed_width(schema, path) * group.num_rows)
    return sizes


def _fixed_width(schema: Any, name: str) -> int:
    """Bytes per value; 0 if they vary. The file may be far smaller, because repeated values are stored once."""
    index = schema.get_field_index(name)
    if index < 0 or not pa.types.is_primitive(schema.field(index).type):
        return 0
    return max(1, int(schema.field(index).type.bit_width) // 8)


def group_bounds(file: InputFile, metadata: Any, index: int, schema: Any, target: Any) -> Callable[[str], ColumnBounds]:
    """The known bounds of a row group's columns, for `can_hold`. `target` is the schema that rows are converted to."""
    group = metadata.row_group(index)
    partition = dict(file.partition)

    def bounds(name: str) -> ColumnBounds:
        if name in partition:
            return _constant_bounds(partition[name])
        if name not in target.names:
            return ColumnBounds()
        if name not in schema.names:  # other files have the column
            return ColumnBounds(nulls=True, values=False)
        kind = schema.field(name).type
        if comparison_family(kind) is None or comparison_family(kind) != comparison_family(target.field(name).type):
            return ColumnBounds()
        chunks = (group.column(number) for number in range(group.num_columns))
        chunk = next(chunk for chunk in chunks if chunk.path_in_schema == name)
        return _statistics_bounds(chunk.statistics, kind, group.num_rows)

    return bounds


def _constant_bounds(value: Any) -> ColumnBounds:
    if value is None:
        return ColumnBounds(nulls=True, values=False)
    families: dict[type, Family] = {bool: "bool", int: "whole", float: "float64", str: "text"}
    return ColumnBounds(nulls=False, family=families.get(type(value)), low=value, high=value)


def _statistics_bounds(statistics: Any, kind: Any, num_rows: int) -> ColumnBounds:
    if statistics is None:
        return ColumnBounds()
    count = statistics.null_count if statistics.has_null_count else None
    nulls, values = count is None or count > 0, count is None or count < num_rows
    if not statistics.has_min_max:
        return ColumnBounds(nulls, values)
    try:
        low, high = statistics.min, statistics.max
    except (ValueError, OverflowError):  # truncated within a character, or a date before Python's first
        return ColumnBounds(nulls, values)
    return ColumnBounds(nulls, values, comparison_family(kind), low, high)
