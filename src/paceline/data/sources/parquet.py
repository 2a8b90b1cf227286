"""Parquet: a unit is some row groups of a file, of which only the columns that are needed are read."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from paceline.data.block import Block, Schema
from paceline.data.expressions import Expr, values_of
from paceline.data.files import File, reading
from paceline.data.sources.footers import PARQUET, footer, footers, group_bounds, group_bytes
from paceline.data.sources.pruning import can_hold
from paceline.data.sources.schemas import (
    PATH,
    as_schema,
    block_of,
    conformed,
    partition_fields,
    unified,
    with_file_columns,
)

UNIT_BYTES = 32 << 20
"""Row groups go into one unit up to here. A larger one is a unit by itself: it can only be read from its beginning."""
PIECE_BYTES = 16 << 20
"""How much is read, and handed on, at a time."""
WHOLE_BYTES = 64 << 20
"""A row group up to here is read in one go, which is faster; a larger one as a stream."""


@dataclass(frozen=True)
class Scan:
    """How the rows of a file become the rows of the dataset."""

    columns: tuple[str, ...]
    """What comes out, in this order."""
    read: tuple[str, ...]
    """What is read of the file."""
    target: Any = None
    """The schema that its rows are brought to; None where they are as they should be."""
    partition: tuple[Any, ...] = ()
    include_paths: bool = False
    filter: Any = None
    """An `Expr` or a `pyarrow.compute.Expression`."""

    def blocks(self, table: Any, file: File) -> Iterator[Block]:
        if self.target is not None:
            table = conformed(table, self.target)
        if self.partition or self.include_paths:
            table = with_file_columns(table, file, self.partition, self.include_paths)
        if self.filter is not None:
            table = table.filter(_mask(self.filter, table))
        if tuple(table.schema.names) != self.columns:
            table = table.select(list(self.columns))
        if not table.num_rows:
            return
        block = block_of(table)
        rows = max(1, block.num_rows * PIECE_BYTES // max(PIECE_BYTES, block.nbytes))
        for start in range(0, block.num_rows, rows):
            yield block.slice(start, start + rows)


def _mask(condition: Any, table: Any) -> Any:
    if isinstance(condition, Expr):
        return values_of(condition, block_of(table.select(sorted(condition.columns()))))
    return condition


@dataclass(frozen=True)
class RowGroups:
    """A unit: neighbouring row groups of one file."""

    file: File
    groups: tuple[int, ...]
    whole: bool
    """All that the file has."""
    num_stored: int
    """Rows in them, before any is filtered out."""
    num_bytes: int
    scan: Scan

    @property
    def name(self) -> str:
        if self.whole:
            return self.file.name
        first, last = self.groups[0], self.groups[-1]
        if first == last:
            return f"{self.file.name} (row group {first})"
        return f"{self.file.name} (row groups {first} to {last})"

    @property
    def num_rows(self) -> int | None:
        return self.num_stored if self.scan.filter is None else None

    def read(self) -> Iterator[Block]:
        metadata = footer(self.file)
        self._check(metadata)
        with reading(self.file, PARQUET):
            opened = self._opened(metadata)
        with opened:
            schema = opened.schema_arrow
            needed = set(self.scan.read)
            sizes = [group_bytes(metadata, group, needed, schema) for group in self.groups]
            for groups, size in _pieces(self.groups, sizes):
                for table in self._tables(opened, groups, size):
                    yield from self.scan.blocks(table, self.file)

    def _opened(self, metadata: Any) -> Any:
        if self.file.local is not None:
            return pq.ParquetFile(self.file.local, memory_map=True, metadata=metadata)
        # From a store, what lies near to each other is asked for at once and ahead.
        return pq.ParquetFile(self.file.open(), metadata=metadata, pre_buffer=True)

    def _tables(self, opened: Any, groups: Sequence[int], size: int) -> Iterator[Any]:
        columns = list(self.scan.read)
        if size <= WHOLE_BYTES:
            with reading(self.file, PARQUET):
                table = opened.read_row_groups(list(groups), columns=columns, use_threads=False)
            yield table
            return
        num_rows = sum(opened.metadata.row_group(group).num_rows for group in groups)
        rows = max(1, num_rows * PIECE_BYTES // size)
        with reading(self.file, PARQUET):
            batches = opened.iter_batches(rows, row_groups=list(groups), columns=columns, use_threads=False)
        while True:
            with reading(self.file, PARQUET):
                batch = next(batches, None)
            if batch is None:
                return
            yield pa.Table.from_batches([batch])

    def _check(self, metadata: Any) -> None:
        """The file must be the one that the plan was made of, or rows would be lost or doubled."""
        last = self.groups[-1]
        known = metadata.num_row_groups > last
        rows = sum(metadata.row_group(group).num_rows for group in self.groups) if known else -1
        if rows != self.num_stored:
            now = f"they have {rows}" if known else f"there are only {metadata.num_row_groups}"
            raise ValueError(
                f"{self.file} has changed since the dataset was made: its row groups {self.groups[0]} to {last} had "
                f"{self.num_stored} rows, now {now}\n\nhint: make the dataset again, from files that stay as they are"
            )


def _pieces(groups: Sequence[int], sizes: Sequence[int]) -> Iterator[tuple[list[int], int]]:
    """Neighbours together, up to the size of a piece."""
    found: list[int] = []
    total = 0
    for group, size in zip(groups, sizes, strict=True):
        if found and total + size > PIECE_BYTES:
            yield found, total
            found, total = [], 0
        found.append(group)
        total += size
    if found:
        yield found, total


@dataclass(frozen=True)
class Parquet:
    """The source of `read_parquet`."""

    name: str
    files: tuple[File, ...]
    columns: tuple[str, ...] | None = None
    filter: Any = None
    include_paths: bool = False
    predicates: tuple[Expr, ...] = ()
    """Row groups in which one of these holds for no row are left out."""
    num_units: int | None = None
    """About how many units there should be; None: what suits their size."""

    def units(self) -> Sequence[RowGroups]:
        return self._units

    def schema(self) -> Schema:
        return as_schema(pa.schema([self._full.field(name) for name in self._names]))

    def projected(self, columns: Sequence[str]) -> Parquet | None:
        if tuple(columns) == self._names or not set(columns) <= set(self._names):
            return None
        return replace(self, columns=tuple(columns))

    def pruned(self, predicate: Expr) -> Parquet | None:
        found = replace(self, predicates=(*self.predicates, predicate))
        before, after = self.units(), found.units()
        return found if sum(len(unit.groups) for unit in after) < sum(len(unit.groups) for unit in before) else None

    def checked(self) -> Parquet:
        """Itself, once all footers are read and the arguments are known to fit them."""
        known = self._known
        if self.columns is not None and len(set(self.columns)) < len(self.columns):
            raise ValueError(f"columns={list(self.columns)!r} names a column twice")
        needed = [("columns", name) for name in self.columns or ()]
        if isinstance(self.filter, Expr):
            needed += [("filter", name) for name in sorted(self.filter.columns())]
        for argument, name in needed:
            if name not in known:
                shown = ", ".join(map(repr, known)) or "none"
                raise ValueError(f"{argument} names {name!r}, which is no column of {self.name}; there are: {shown}")
        self.schema()
        return self

    @cached_property
    def _footers(self) -> list[Any]:
        return footers(self.files)

    @cached_property
    def _schemas(self) -> list[Any]:
        schemas = []
        for file, metadata in zip(self.files, self._footers, strict=True):
            with reading(file, PARQUET):
                schema = metadata.schema.to_arrow_schema().remove_metadata()
            if len(set(schema.names)) < len(schema.names):
                twice = next(name for name in schema.names if schema.names.count(name) > 1)
                raise ValueError(f"{file} has two columns called {twice!r}: a dataset needs a name for each")
            schemas.append(schema)
        return schemas

    @cached_property
    def _beside(self) -> list[Any]:
        """The columns that come from where a file is."""
        return [*partition_fields(self.files), *([pa.field(PATH, pa.string())] if self.include_paths else [])]

    @cached_property
    def _known(self) -> list[str]:
        """All columns that there are."""
        names = dict.fromkeys(name for schema in self._schemas for name in schema.names)
        return list(names | dict.fromkeys(field.name for field in self._beside))

    @cached_property
    def _names(self) -> tuple[str, ...]:
        """The columns that come out."""
        return self.columns if self.columns is not None else tuple(self._known)

    @cached_property
    def _needed(self) -> list[str]:
        """The columns that are looked at on the way, in the order in which files have them."""
        if self.filter is not None and not isinstance(self.filter, Expr):
            return self._known  # what an expression of pyarrow looks at cannot be told
        wanted = {*self._names, *(self.filter.columns() if self.filter is not None else ())}
        return [name for name in self._known if name in wanted]

    @cached_property
    def _stored(self) -> Any:
        """The schema that the rows of every file are brought to, before the columns beside are added."""
        beside = {field.name for field in self._beside}
        wanted = [name for name in self._needed if name not in beside]
        parts = [pa.schema([field for field in schema if field.name in wanted]) for schema in self._schemas]
        found = unified(self.files, parts)
        return pa.schema([found.field(name) for name in wanted])

    @cached_property
    def _full(self) -> Any:
        return pa.schema([*self._stored, *self._beside])

    @cached_property
    def _units(self) -> tuple[RowGroups, ...]:
        limit = UNIT_BYTES
        if self.num_units is not None:
            total = sum(
                group_bytes(metadata, group, set(self._stored.names), schema)
                for metadata, schema in zip(self._footers, self._schemas, strict=True)
                for group in range(metadata.num_row_groups)
            )
            limit = max(1, -(-total // self.num_units))
        return tuple(
            unit
            for file, metadata, schema in zip(self.files, self._footers, self._schemas, strict=True)
            for unit in self._units_of(file, metadata, schema, limit)
        )

    def _units_of(self, file: File, metadata: Any, schema: Any, limit: int) -> Iterator[RowGroups]:
        there = set(schema.names)
        read = tuple(name for name in self._stored.names if name in there)
        own = pa.schema([schema.field(name) for name in read])
        scan = Scan(
            columns=self._names,
            read=read,
            target=None if own.equals(self._stored, check_metadata=True) else self._stored,
            partition=tuple(field for field in partition_fields(self.files) if field.name in self._needed),
            include_paths=self.include_paths and PATH in self._needed,
            filter=self.filter,
        )
        groups = [group for group in range(metadata.num_row_groups) if self._may_match(file, metadata, group, schema)]
        sizes = [group_bytes(metadata, group, set(read), schema) for group in groups]
        for found in _runs(groups, sizes, limit):
            yield RowGroups(
                file=file,
                groups=tuple(group for group, _ in found),
                whole=len(found) == metadata.num_row_groups,
                num_stored=sum(metadata.row_group(group).num_rows for group, _ in found),
                num_bytes=sum(size for _, size in found),
                scan=scan,
            )

    def _may_match(self, file: File, metadata: Any, group: int, schema: Any) -> bool:
        if not metadata.row_group(group).num_rows:
            return False
        conditions = [*self.predicates, *([self.filter] if isinstance(self.filter, Expr) else [])]
        if not conditions:
            return True
        bounds = group_bounds(file, metadata, group, schema, self._promoted)
        return all(can_hold(condition, bounds) for condition in conditions)

    @cached_property
    def _promoted(self) -> Any:
        """The types of the columns that conditions look at, which need not be among those that are handed on."""
        conditions = [*self.predicates, *([self.filter] if isinstance(self.filter, Expr) else [])]
        wanted = {name for condition in conditions for name in condition.columns()}
        parts = [pa.schema([field for field in schema if field.name in wanted]) for schema in self._schemas]
        return unified(self.files, parts)

    def __getstate__(self) -> dict[str, Any]:
        return {name: self.__dict__[name] for name in self.__dataclass_fields__}


def _runs(groups: Sequence[int], sizes: Sequence[int], limit: int) -> Iterator[list[tuple[int, int]]]:
    """Neighbouring row groups, up to a size; those between which others were left out are not neighbours."""
    found: list[tuple[int, int]] = []
    for group, size in zip(groups, sizes, strict=True):
        if found and (group != found[-1][0] + 1 or sum(size for _, size in found) + size > limit):
            yield found
            found = []
        found.append((group, size))
    if found:
        yield found
