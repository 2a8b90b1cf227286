"""Table formats with a library of their own: Delta Lake, Iceberg and Lance.

Each read is of one version of a table, found when the reader is called, so that all epochs and a resumed run see the
same rows. A unit is a file or fragment of the table.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any

import pyarrow as pa

from paceline._core.lazy_imports import import_extra
from paceline.data.block import Block, Schema
from paceline.data.planning.plan import PlainSource
from paceline.data.sources.files import InputFile, list_files
from paceline.data.sources.schemas import table_to_block, to_schema

# Delta Lake: the log says which Parquet files are the table, and the values of the partition columns


def open_delta(path: str, version: Any, storage_options: Mapping[str, str] | None) -> Any:
    deltalake = import_extra("deltalake", "read_delta")
    table = deltalake.DeltaTable(path, version=version, storage_options=dict(storage_options or {}) or None)
    features = {*(table.protocol().reader_features or ())}
    if unsupported := features & {"deletionVectors", "columnMapping"}:
        raise ValueError(
            f"read_delta cannot read {path}: the table uses {', '.join(sorted(unsupported))}\n\n"
            "hint: rewrite it without (OPTIMIZE or REORG), or read deltalake.DeltaTable(...) with from_arrow"
        )
    return table


def list_delta_files(table: Any, filesystem: Any) -> tuple[InputFile, ...]:
    """The files of the table's version, in the order of their paths, with typed partition values."""
    actions = pa.table(table.get_add_actions(flatten=True)).to_pylist()
    names = table.metadata().partition_columns
    values = {action["path"]: tuple((name, action.get(f"partition.{name}")) for name in names) for action in actions}
    ordered = sorted(values)  # quoted, as in any URI
    root = table.table_uri.rstrip("/")
    files = list_files([f"{root}/{path}" for path in ordered], filesystem, partitioning=None)
    return tuple(replace(file, partition=values[path], name=path) for file, path in zip(files, ordered, strict=True))


# Iceberg


@dataclass(frozen=True, eq=False)
class IcebergSource(PlainSource):
    name: str
    scan: Any
    tasks: tuple[Any, ...]
    """The files to read, each with the deletes that apply to it."""

    def units(self) -> Sequence[IcebergUnit]:
        parts = (self.scan.table_metadata, self.scan.io, self.scan.projection(), self.scan.row_filter)
        return [IcebergUnit(task.file.file_path, task, *parts, self.scan.case_sensitive) for task in self.tasks]

    def schema(self) -> Schema:
        return to_schema(_iceberg_arrow_schema(self.scan.projection()))

    def project_columns(self, columns: Sequence[str]) -> IcebergSource | None:
        return replace(self, scan=self.scan.select(*columns)) if columns else None


def _iceberg_arrow_schema(schema: Any) -> Any:
    from pyiceberg.io.pyarrow import schema_to_pyarrow

    return schema_to_pyarrow(schema, include_field_ids=False)


@dataclass(frozen=True, eq=False)
class IcebergUnit:
    name: str
    task: Any
    metadata: Any
    io: Any
    projection: Any
    row_filter: Any
    case_sensitive: bool

    @property
    def num_rows(self) -> int | None:
        is_whole = not self.task.delete_files and type(self.row_filter).__name__ == "AlwaysTrue"
        return int(self.task.file.record_count) if is_whole else None

    @property
    def num_bytes(self) -> int:
        return int(self.task.file.file_size_in_bytes)

    def read(self) -> Iterator[Block]:
        from pyiceberg.io.pyarrow import ArrowScan

        scan = ArrowScan(self.metadata, self.io, self.projection, self.row_filter, self.case_sensitive)
        schema = _iceberg_arrow_schema(self.projection)
        for batch in scan.to_record_batches([self.task]):
            if batch.num_rows:
                yield table_to_block(pa.Table.from_batches([batch]).cast(schema))


def plan_iceberg_scan(
    table: Any, row_filter: Any, fields: Sequence[str], snapshot_id: int | None, options: Mapping[str, Any]
) -> IcebergSource:
    expression = row_filter
    if expression is None:
        expression = import_extra("pyiceberg.expressions", "read_iceberg").AlwaysTrue()
    snapshot = snapshot_id
    if snapshot is None and table.current_snapshot() is not None:
        snapshot = table.current_snapshot().snapshot_id
    scan = table.scan(expression, selected_fields=tuple(fields), snapshot_id=snapshot, **options)
    if isinstance(expression, str):
        scan = table.scan(scan.row_filter, selected_fields=tuple(fields), snapshot_id=snapshot, **options)
    tasks = sorted(scan.plan_files(), key=lambda task: task.file.file_path)
    return IcebergSource(f"read_iceberg({'.'.join(table.name())!r})", scan, tuple(tasks))


# Lance


@dataclass(frozen=True)
class LanceScan:
    uri: str
    version: int
    storage_options: tuple[tuple[str, str], ...] = ()
    columns: tuple[str, ...] | None = None
    filter: str | None = None
    scanner_options: tuple[tuple[str, Any], ...] = field(default=(), compare=False)

    def open(self) -> Any:
        return _open_lance(self.uri, self.version, self.storage_options)

    def scan_fragment(self, number: int) -> Any:
        columns = None if self.columns is None else list(self.columns)
        fragment = self.open().get_fragment(number)
        return fragment.scanner(columns=columns, filter=self.filter, **dict(self.scanner_options))


@lru_cache(maxsize=4)
def _open_lance(uri: str, version: int, storage_options: tuple[tuple[str, str], ...]) -> Any:
    lance = import_extra("lance", "read_lance")
    return lance.dataset(uri, version=version, storage_options=dict(storage_options) or None)


@dataclass(frozen=True)
class LanceUnit:
    name: str
    scan: LanceScan
    fragment: int
    num_rows: int | None
    num_bytes: int | None = None

    def read(self) -> Iterator[Block]:
        for batch in self.scan.scan_fragment(self.fragment).to_batches():
            if batch.num_rows:
                yield table_to_block(pa.Table.from_batches([batch]))


@dataclass(frozen=True)
class LanceSource(PlainSource):
    name: str
    scan: LanceScan

    def units(self) -> Sequence[LanceUnit]:
        limited = self.scan.filter is not None or self.scan.scanner_options
        return [
            LanceUnit(
                f"{self.scan.uri} version {self.scan.version} (fragment {fragment.fragment_id})",
                self.scan,
                fragment.fragment_id,
                None if limited else fragment.count_rows(),
            )
            for fragment in sorted(self.scan.open().get_fragments(), key=lambda each: each.fragment_id)
        ]

    def schema(self) -> Schema:
        opened = self.scan.open()
        columns = None if self.scan.columns is None else list(self.scan.columns)
        return to_schema(opened.scanner(columns=columns).projected_schema)

    def project_columns(self, columns: Sequence[str]) -> LanceSource | None:
        return replace(self, scan=replace(self.scan, columns=tuple(columns))) if columns else None
