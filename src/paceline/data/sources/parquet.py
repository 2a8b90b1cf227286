"""Parquet files: which row groups and columns are read, decided from the footers, and how they become rows."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import xxhash

from paceline._storage.store_errors import summarize_error
from paceline.data.block import Block, Schema, list_columns
from paceline.data.expressions import Expr, evaluate_column
from paceline.data.sources.files import InputFile, explain_read_errors
from paceline.data.sources.footers import PARQUET, ParquetContents, group_bounds, read_footer
from paceline.data.sources.pruning import can_hold
from paceline.data.sources.schemas import (
    PATH,
    conform_table,
    partition_fields,
    path_fields,
    table_to_block,
    to_schema,
    unify_schemas,
    with_file_columns,
)

ROW_HASH = "row_hash"
"""The column added by `include_row_hash=True`."""
UNIT_BYTES = 32 << 20
"""The target size of a unit. A larger row group is its own unit: it can only be read from its beginning."""
PIECE_BYTES = 16 << 20
"""How much is read and passed on at a time."""
WHOLE_BYTES = 64 << 20
"""Row groups up to this size are read at once, which is faster; larger ones as a stream."""
_BINARY_WEIGHT = 8
"""The weight of binary columns when units are cut: images and audio grow when decoded, and take longer than numbers.
Units of a second each would leave processes idle at the end of an epoch."""


@dataclass(frozen=True, eq=False)
class ParquetSource:
    name: str
    contents: ParquetContents
    columns: tuple[str, ...] | None = None
    filter: Any = None
    include_paths: bool = False
    projection: tuple[str, ...] | None = None
    """The columns to output; None: all. Units are cut as if all were, so their order stays the same."""
    predicates: tuple[Expr, ...] = ()
    """Row groups in which one of these holds for no row are skipped."""
    num_units: int | None = None
    """The approximate number of units; None: chosen by size."""
    include_row_hash: bool = False

    @property
    def files(self) -> tuple[InputFile, ...]:
        return self.contents.files

    def units(self) -> Sequence[RowGroupUnit]:
        return self._planned_units

    def schema(self) -> Schema:
        return to_schema(pa.schema([self._full_schema.field(name) for name in self._output_columns]))

    def project_columns(self, columns: Sequence[str]) -> ParquetSource | None:
        if tuple(columns) == self._output_columns or not set(columns) <= set(self._output_columns):
            return None
        return replace(self, projection=tuple(columns))

    def prune_units(self, predicate: Expr) -> ParquetSource | None:
        pruned = replace(self, predicates=(*self.predicates, predicate))
        before, after = self.units(), pruned.units()
        return pruned if sum(len(unit.groups) for unit in after) < sum(len(unit.groups) for unit in before) else None

    def validate(self) -> ParquetSource:
        """Read all footers and check the arguments against them; return self."""
        existing = self._all_columns
        if self.columns is not None and len(set(self.columns)) < len(self.columns):
            raise ValueError(f"columns must be unique, got {list(self.columns)!r}")
        needed = [("columns", name) for name in self.columns or ()]
        if isinstance(self.filter, Expr):
            needed += [("filter", name) for name in sorted(self.filter.columns())]
        for argument, name in needed:
            if name not in existing:
                names = list_columns(existing, name)
                raise ValueError(f"{argument}: unknown column {name!r} of {self.name}; the columns are {names}")
        self.schema()
        if self.filter is not None:
            try:
                filter_table(self._full_schema.empty_table(), self.filter)
            except (pa.ArrowException, TypeError) as error:
                raise ValueError(
                    f"cannot apply filter {self.filter!r} to the columns: {summarize_error(error)}"
                ) from error
        return self

    @cached_property
    def _file_columns(self) -> list[Any]:
        hashes = [pa.field(ROW_HASH, pa.uint64())] if self.include_row_hash else []
        return [*path_fields(self.files, self.include_paths), *hashes]

    @cached_property
    def _all_columns(self) -> list[str]:
        names = dict.fromkeys(name for schema in self.contents.schemas for name in schema.names)
        return list(names | dict.fromkeys(field.name for field in self._file_columns))

    @cached_property
    def _output_columns(self) -> tuple[str, ...]:
        for names in (self.projection, self.columns):
            if names is not None:
                return names
        return tuple(self._all_columns)

    @cached_property
    def _scanned_columns(self) -> list[str]:
        """The columns that are read or filtered by, in file order."""
        return self._with_filter_columns(self._output_columns)

    def _with_filter_columns(self, names: Sequence[str]) -> list[str]:
        if self.filter is not None and not isinstance(self.filter, Expr):
            return self._all_columns  # the columns of a pyarrow expression are unknown
        needed = {*names, *(self.filter.columns() if self.filter is not None else ())}
        return [name for name in self._all_columns if name in needed]

    @cached_property
    def _file_schema(self) -> Any:
        """The schema that the rows of every file are converted to, before the columns from its path are added."""
        beside = {field.name for field in self._file_columns}
        names = [name for name in self._scanned_columns if name not in beside]
        schema = self._unify_types(set(names))
        return pa.schema([schema.field(name) for name in names])

    def _unify_types(self, names: set[str]) -> Any:
        distinct = {id(schema): number for number, schema in reversed(list(enumerate(self.contents.schemas)))}
        numbers = sorted(distinct.values())
        parts = [[field for field in self.contents.schemas[number] if field.name in names] for number in numbers]
        return unify_schemas([self.files[number] for number in numbers], [pa.schema(part) for part in parts])

    @cached_property
    def _full_schema(self) -> Any:
        return pa.schema([*self._file_schema, *self._file_columns])

    @cached_property
    def _planned_units(self) -> tuple[RowGroupUnit, ...]:
        counted = self._with_filter_columns(self.columns if self.columns is not None else self._all_columns)
        packed = {name for name in counted if self._is_binary(name)}
        sizes = [
            [_sum_columns(group, counted) + (_BINARY_WEIGHT - 1) * _sum_columns(group, packed) for group in groups]
            for groups in self.contents.sizes
        ]
        limit = UNIT_BYTES
        if self.num_units is not None:
            limit = max(1, -(-sum(map(sum, sizes)) // self.num_units))
        scans = {id(schema): self._make_scan(schema) for schema in self.contents.schemas}
        return tuple(
            unit
            for index, schema in enumerate(self.contents.schemas)
            for unit in self._make_units(index, sizes[index], limit, scans[id(schema)])
        )

    def _is_binary(self, name: str) -> bool:
        return any(
            name in schema.names
            and (pa.types.is_binary(kind := schema.field(name).type) or pa.types.is_large_binary(kind))
            for schema in {id(schema): schema for schema in self.contents.schemas}.values()
        )

    def _make_units(self, index: int, sizes: Sequence[int], limit: int, scan: ParquetScan) -> Iterator[RowGroupUnit]:
        file, metadata, by_column = self.files[index], self.contents.footers[index], self.contents.sizes[index]
        for run, _ in group_by_size(range(metadata.num_row_groups), sizes, limit):
            groups = tuple(group for group in run if self._may_match(index, group))
            if groups:
                yield RowGroupUnit(
                    file=file,
                    name=_unit_name(file, run, metadata.num_row_groups),
                    groups=groups,
                    sizes=tuple(_sum_columns(by_column[group], scan.stored_columns) for group in groups),
                    num_stored=sum(metadata.row_group(group).num_rows for group in groups),
                    scan=scan,
                )

    def _make_scan(self, schema: Any) -> ParquetScan:
        stored = tuple(name for name in self._file_schema.names if name in schema.names)
        stored_schema = pa.schema([schema.field(name) for name in stored])
        return ParquetScan(
            columns=self._output_columns,
            stored_columns=stored,
            target=None if stored_schema.equals(self._file_schema, check_metadata=True) else self._file_schema,
            partition=tuple(field for field in partition_fields(self.files) if field.name in self._scanned_columns),
            include_paths=self.include_paths and PATH in self._scanned_columns,
            filter=self.filter,
            include_row_hash=self.include_row_hash and ROW_HASH in self._scanned_columns,
        )

    def _may_match(self, index: int, group: int) -> bool:
        metadata = self.contents.footers[index]
        if not metadata.row_group(group).num_rows:
            return False
        if not self._conditions:
            return True
        bounds = group_bounds(self.files[index], metadata, group, self.contents.schemas[index], self._condition_schema)
        return all(can_hold(condition, bounds) for condition in self._conditions)

    @cached_property
    def _conditions(self) -> list[Expr]:
        return [*self.predicates, *([self.filter] if isinstance(self.filter, Expr) else [])]

    @cached_property
    def _condition_schema(self) -> Any:
        """The types of the columns used by conditions, which need not be among the output columns."""
        needed = {name for condition in self._conditions for name in condition.columns()}
        return self._unify_types(needed)

    def __getstate__(self) -> dict[str, Any]:
        return {name: self.__dict__[name] for name in self.__dataclass_fields__}


def _sum_columns(sizes: dict[str, int], names: Iterable[str]) -> int:
    return sum(sizes.get(name, 0) for name in names)


def _unit_name(file: InputFile, run: Sequence[int], num_groups: int) -> str:
    if len(run) == num_groups:
        return file.name
    if len(run) == 1:
        return f"{file.name} (row group {run[0]})"
    return f"{file.name} (row groups {run[0]} to {run[-1]})"


@dataclass(frozen=True, eq=False)  # expressions have no truth value, so they cannot be compared
class ParquetScan:
    columns: tuple[str, ...]
    stored_columns: tuple[str, ...]
    target: Any = None
    """The schema that rows are converted to; None if no conversion is needed."""
    partition: tuple[Any, ...] = ()
    include_paths: bool = False
    filter: Any = None
    include_row_hash: bool = False

    def to_blocks(self, table: Any, file: InputFile, numbers: Any) -> Iterator[Block]:
        """Convert rows of a file, given with their numbers in it."""
        if self.target is not None:
            with explain_read_errors(file, PARQUET):
                table = conform_table(table, self.target)
        if self.partition or self.include_paths:
            table = with_file_columns(table, file, self.partition, self.include_paths)
        if self.include_row_hash:
            table = table.append_column(ROW_HASH, pa.array(hash_row_numbers(file, numbers)))
        if self.filter is not None:
            table = filter_table(table, self.filter)
        if tuple(table.schema.names) != self.columns:
            table = table.select(list(self.columns))
        if not table.num_rows:
            return
        block = table_to_block(table)
        rows = max(1, block.num_rows * PIECE_BYTES // max(PIECE_BYTES, block.nbytes))
        for start in range(0, block.num_rows, rows):
            yield block.slice(start, start + rows)


def _row_numbers(metadata: Any, groups: Sequence[int]) -> Any:
    """The numbers, in the file, of the rows of some row groups."""
    sizes = [metadata.row_group(index).num_rows for index in range(metadata.num_row_groups)]
    starts = np.cumsum([0, *sizes])
    return np.concatenate([np.arange(starts[group], starts[group + 1], dtype=np.uint64) for group in groups])


def hash_row_numbers(file: InputFile, numbers: Any) -> Any:
    """A number for each row of a file, by SplitMix64: different in one file, and well spread over all."""
    with np.errstate(over="ignore"):
        mixed = numbers * np.uint64(0x9E3779B97F4A7C15) + np.uint64(xxhash.xxh3_64_intdigest(str(file).encode()))
        mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return mixed ^ (mixed >> np.uint64(31))


def filter_table(table: Any, condition: Any) -> Any:
    if isinstance(condition, Expr):
        return table.filter(evaluate_column(condition, table_to_block(table.select(sorted(condition.columns())))))
    # Not `table.filter`: it uses threads and returns rows in the order in which those finish.
    from pyarrow.acero import Declaration, FilterNodeOptions, TableSourceNodeOptions

    rows = Declaration("table_source", TableSourceNodeOptions(table))
    return Declaration("filter", FilterNodeOptions(condition), inputs=[rows]).to_table(use_threads=False)


@dataclass(frozen=True, eq=False)
class RowGroupUnit:
    """Neighbouring row groups of one file, without those in which no row can match."""

    file: InputFile
    name: str
    groups: tuple[int, ...]
    sizes: tuple[int, ...]
    """The approximate bytes of each row group, once read."""
    num_stored: int
    scan: ParquetScan

    @property
    def num_rows(self) -> int | None:
        return self.num_stored if self.scan.filter is None else None

    @property
    def num_bytes(self) -> int:
        return sum(self.sizes)

    def read(self) -> Iterator[Block]:
        metadata = read_footer(self.file)
        self._check_unchanged(metadata)
        local = self.file.local_path
        with explain_read_errors(self.file, PARQUET):
            source = pa.memory_map(local) if local is not None else self.file.open()
        with source:
            with explain_read_errors(self.file, PARQUET):
                # From an object store, merge nearby ranges into one request, and read ahead.
                opened = pq.ParquetFile(source, metadata=metadata, pre_buffer=local is None)
            for groups, size in group_by_size(self.groups, self.sizes, PIECE_BYTES):
                numbers, begin = _row_numbers(metadata, groups) if self.scan.include_row_hash else None, 0
                for table in self._read_tables(opened, groups, size):
                    end = begin + table.num_rows
                    yield from self.scan.to_blocks(table, self.file, None if numbers is None else numbers[begin:end])
                    begin = end

    def _read_tables(self, opened: Any, groups: Sequence[int], size: int) -> Iterator[Any]:
        columns = list(self.scan.stored_columns)
        if size <= WHOLE_BYTES:
            with explain_read_errors(self.file, PARQUET):
                table = opened.read_row_groups(list(groups), columns=columns, use_threads=False)
            yield table
            return
        num_rows = sum(opened.metadata.row_group(group).num_rows for group in groups)
        rows = max(1, num_rows * PIECE_BYTES // size)
        with explain_read_errors(self.file, PARQUET):
            batches = opened.iter_batches(rows, row_groups=list(groups), columns=columns, use_threads=False)
        while True:
            with explain_read_errors(self.file, PARQUET):
                batch = next(batches, None)
            if batch is None:
                return
            yield pa.Table.from_batches([batch])

    def _check_unchanged(self, metadata: Any) -> None:
        """The file must be the one that was planned, or rows would be lost or duplicated."""
        last = self.groups[-1]
        has_groups = metadata.num_row_groups > last
        rows = sum(metadata.row_group(group).num_rows for group in self.groups) if has_groups else -1
        if rows != self.num_stored:
            now = f"they have {rows}" if has_groups else f"there are only {metadata.num_row_groups} row groups"
            raise ValueError(
                f"{self.file} has changed since the dataset was created: row groups {self.groups[0]} to {last} had "
                f"{self.num_stored} rows, now {now}\n\nhint: create the dataset again, from unchanging files"
            )


def group_by_size(groups: Sequence[int], sizes: Sequence[int], limit: int) -> Iterator[tuple[list[int], int]]:
    """Group consecutive row groups up to a size; yield each group with its total size."""
    run: list[int] = []
    total = 0
    for group, size in zip(groups, sizes, strict=True):
        if run and total + size > limit:
            yield run, total
            run, total = [], 0
        run.append(group)
        total += size
    if run:
        yield run, total
