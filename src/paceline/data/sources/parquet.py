"""Parquet: which row groups and columns are read, and what the rows will look like, by the footers of the files."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import pyarrow as pa

from paceline._storage.trouble import in_short
from paceline.data.block import Schema
from paceline.data.expressions import Expr
from paceline.data.files import File
from paceline.data.sources.footers import Contents, group_bounds
from paceline.data.sources.pruning import can_hold
from paceline.data.sources.row_groups import RowGroups, Scan, filtered, runs
from paceline.data.sources.schemas import PATH, as_schema, partition_fields, unified

UNIT_BYTES = 32 << 20
"""Row groups go into one unit up to here. A larger one is a unit by itself: it can only be read from its beginning."""

_UNFOLDS = 8
"""So often bytes of a binary column count when units are cut: pictures and sound unfold when they are decoded, and take
longer than numbers do. Units of a second each would leave processes idle at the end of an epoch."""


@dataclass(frozen=True, eq=False)
class Parquet:
    """The source of `read_parquet`."""

    name: str
    contents: Contents
    columns: tuple[str, ...] | None = None
    filter: Any = None
    include_paths: bool = False
    projection: tuple[str, ...] | None = None
    """Which of the columns are handed on; None: all. Units are cut as if all were, so their order stays the same."""
    predicates: tuple[Expr, ...] = ()
    """Row groups in which one of these holds for no row are left out."""
    num_units: int | None = None
    """About how many units there should be; None: what suits their size."""

    @property
    def files(self) -> tuple[File, ...]:
        return self.contents.files

    def units(self) -> Sequence[RowGroups]:
        return self._units

    def schema(self) -> Schema:
        return as_schema(pa.schema([self._full.field(name) for name in self._names]))

    def projected(self, columns: Sequence[str]) -> Parquet | None:
        if tuple(columns) == self._names or not set(columns) <= set(self._names):
            return None
        return replace(self, projection=tuple(columns))

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
        if self.filter is not None:
            try:
                filtered(self._full.empty_table(), self.filter)
            except (pa.ArrowException, TypeError) as error:
                raise ValueError(f"filter={self.filter!r} does not fit the columns: {in_short(error)}") from error
        return self

    @cached_property
    def _partition(self) -> list[Any]:
        return partition_fields(self.files)

    @cached_property
    def _beside(self) -> list[Any]:
        """The columns that come from where a file is."""
        return [*self._partition, *([pa.field(PATH, pa.string())] if self.include_paths else [])]

    @cached_property
    def _known(self) -> list[str]:
        """All columns that there are."""
        names = dict.fromkeys(name for schema in self.contents.schemas for name in schema.names)
        return list(names | dict.fromkeys(field.name for field in self._beside))

    @cached_property
    def _names(self) -> tuple[str, ...]:
        """The columns that come out."""
        for names in (self.projection, self.columns):
            if names is not None:
                return names
        return tuple(self._known)

    @cached_property
    def _needed(self) -> list[str]:
        """The columns that are looked at on the way, in the order in which files have them."""
        return self._with_filtered(self._names)

    def _with_filtered(self, names: Sequence[str]) -> list[str]:
        if self.filter is not None and not isinstance(self.filter, Expr):
            return self._known  # what an expression of pyarrow looks at cannot be told
        wanted = {*names, *(self.filter.columns() if self.filter is not None else ())}
        return [name for name in self._known if name in wanted]

    @cached_property
    def _stored(self) -> Any:
        """The schema that the rows of every file are brought to, before the columns beside are added."""
        beside = {field.name for field in self._beside}
        wanted = [name for name in self._needed if name not in beside]
        found = self._unified(set(wanted))
        return pa.schema([found.field(name) for name in wanted])

    def _unified(self, names: set[str]) -> Any:
        """The types of some columns, over all files."""
        distinct = {id(schema): number for number, schema in reversed(list(enumerate(self.contents.schemas)))}
        numbers = sorted(distinct.values())
        parts = [[field for field in self.contents.schemas[number] if field.name in names] for number in numbers]
        return unified([self.files[number] for number in numbers], [pa.schema(part) for part in parts])

    @cached_property
    def _full(self) -> Any:
        return pa.schema([*self._stored, *self._beside])

    @cached_property
    def _units(self) -> tuple[RowGroups, ...]:
        counted = self._with_filtered(self.columns if self.columns is not None else self._known)
        packed = {name for name in counted if self._is_packed(name)}
        sizes = [
            [_sum(group, counted) + (_UNFOLDS - 1) * _sum(group, packed) for group in groups]
            for groups in self.contents.sizes
        ]
        limit = UNIT_BYTES
        if self.num_units is not None:
            limit = max(1, -(-sum(map(sum, sizes)) // self.num_units))
        scans = {id(schema): self._scan(schema) for schema in self.contents.schemas}
        return tuple(
            unit
            for index, schema in enumerate(self.contents.schemas)
            for unit in self._units_of(index, sizes[index], limit, scans[id(schema)])
        )

    def _is_packed(self, name: str) -> bool:
        return any(
            name in schema.names
            and (pa.types.is_binary(kind := schema.field(name).type) or pa.types.is_large_binary(kind))
            for schema in {id(schema): schema for schema in self.contents.schemas}.values()
        )

    def _units_of(self, index: int, sizes: Sequence[int], limit: int, scan: Scan) -> Iterator[RowGroups]:
        """The units of one file."""
        file, metadata, by_column = self.files[index], self.contents.footers[index], self.contents.sizes[index]
        for run, _ in runs(range(metadata.num_row_groups), sizes, limit):
            groups = tuple(group for group in run if self._may_match(index, group))
            if groups:
                yield RowGroups(
                    file=file,
                    name=_called(file, run, metadata.num_row_groups),
                    groups=groups,
                    sizes=tuple(_sum(by_column[group], scan.read) for group in groups),
                    num_stored=sum(metadata.row_group(group).num_rows for group in groups),
                    scan=scan,
                )

    def _scan(self, schema: Any) -> Scan:
        there = set(schema.names)
        read = tuple(name for name in self._stored.names if name in there)
        own = pa.schema([schema.field(name) for name in read])
        return Scan(
            columns=self._names,
            read=read,
            target=None if own.equals(self._stored, check_metadata=True) else self._stored,
            partition=tuple(field for field in self._partition if field.name in self._needed),
            include_paths=self.include_paths and PATH in self._needed,
            filter=self.filter,
        )

    def _may_match(self, index: int, group: int) -> bool:
        """Whether a row group of a file can have a row that is wanted."""
        metadata = self.contents.footers[index]
        if not metadata.row_group(group).num_rows:
            return False
        if not self._conditions:
            return True
        bounds = group_bounds(self.files[index], metadata, group, self.contents.schemas[index], self._promoted)
        return all(can_hold(condition, bounds) for condition in self._conditions)

    @cached_property
    def _conditions(self) -> list[Expr]:
        return [*self.predicates, *([self.filter] if isinstance(self.filter, Expr) else [])]

    @cached_property
    def _promoted(self) -> Any:
        """The types of the columns that conditions look at, which need not be among those that are handed on."""
        wanted = {name for condition in self._conditions for name in condition.columns()}
        return self._unified(wanted)

    def __getstate__(self) -> dict[str, Any]:
        return {name: self.__dict__[name] for name in self.__dataclass_fields__}


def _sum(sizes: dict[str, int], names: Iterable[str]) -> int:
    return sum(sizes.get(name, 0) for name in names)


def _called(file: File, run: Sequence[int], num_groups: int) -> str:
    if len(run) == num_groups:
        return file.name
    if len(run) == 1:
        return f"{file.name} (row group {run[0]})"
    return f"{file.name} (row groups {run[0]} to {run[-1]})"
