"""Readers of tables and array stores that have a library of their own. They follow Ray Data, as those in `read.py`."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Annotated, Any, Unpack

import pyarrow as pa

from paceline._core.arguments import bad_value, check_bool, check_instance, check_int, check_names, with_options
from paceline._core.lazy_imports import import_extra
from paceline.data.dataset import Dataset
from paceline.data.planning.plan import Read
from paceline.data.read import Shuffle, check_read_options, from_arrow, shuffle_units
from paceline.data.sources import tables, zarr
from paceline.data.sources.footers import ParquetContents
from paceline.data.sources.parquet import ParquetSource
from paceline.data.task_options import ReadOptions


class DeltaOptions(ReadOptions, total=False):
    shuffle: Annotated[Shuffle, None]
    include_paths: Annotated[bool, False]
    filesystem: Annotated[Any, None]


@with_options(DeltaOptions)
def read_delta(
    path: str | os.PathLike[str],
    version: int | str | None = None,
    *,
    columns: Sequence[str] | None = None,
    storage_options: Mapping[str, str] | None = None,
    **options: Unpack[DeltaOptions],
) -> Dataset:
    """Read a version of a Delta Lake table, by default the latest: its Parquet files, as `read_parquet` reads them.

    Columns and row groups that are not needed are not read. Tables with deletion vectors or column mapping are refused.
    """
    num_units = check_read_options("read_delta", options)
    check_bool("include_paths", options["include_paths"])
    table = tables.open_delta(os.fspath(path), version, storage_options)
    names = None if columns is None else tuple(check_names("columns", columns))
    name = f"read_delta({os.fspath(path)!r}, version={table.version()})"
    if not table.file_uris():
        empty = pa.schema(table.schema().to_arrow()).empty_table()
        return from_arrow(empty if names is None else empty.select(list(names)))
    contents = ParquetContents(tables.list_delta_files(table, options["filesystem"]))
    source = ParquetSource(name, contents, columns=names, include_paths=options["include_paths"], num_units=num_units)
    if names is None:  # in the order of the table, whose partition columns are in no file
        existing = source.schema().names
        ordered = [each.name for each in table.schema().fields if each.name in existing]
        source = replace(source, columns=(*ordered, *(each for each in existing if each not in ordered)))
    return shuffle_units(Read(source.validate()), options["shuffle"])


@with_options(ReadOptions)
def read_iceberg(
    *,
    table_identifier: str,
    row_filter: Any = None,
    selected_fields: Sequence[str] = ("*",),
    snapshot_id: int | None = None,
    scan_kwargs: Mapping[str, Any] | None = None,
    catalog_kwargs: Mapping[str, Any] | None = None,
    **options: Unpack[ReadOptions],
) -> Dataset:
    """Read a snapshot of an Iceberg table, by default the current one.

    `row_filter` is an expression of pyiceberg, or its text: files that cannot match are not read. `catalog_kwargs` are
    those of `pyiceberg.catalog.load_catalog`, `scan_kwargs` those of `Table.scan`. Units are the table's data files, so
    `override_num_blocks` has no effect.
    """
    check_read_options("read_iceberg", options)
    check_int("snapshot_id", snapshot_id, optional=True)
    fields = check_names("selected_fields", selected_fields)
    table = load_iceberg_table("read_iceberg", table_identifier, catalog_kwargs)
    return Dataset(Read(tables.plan_iceberg_scan(table, row_filter, fields, snapshot_id, dict(scan_kwargs or {}))))


def load_iceberg_table(function: str, identifier: str, catalog_kwargs: Mapping[str, Any] | None) -> Any:
    check_instance("table_identifier", identifier, str, "a name such as 'db.table'")
    catalog = import_extra("pyiceberg.catalog", function)
    kwargs = dict(check_instance("catalog_kwargs", catalog_kwargs, Mapping, "a dict", optional=True) or {})
    return catalog.load_catalog(kwargs.pop("name", "default"), **kwargs).load_table(identifier)


@with_options(ReadOptions)
def read_lance(
    uri: str | os.PathLike[str],
    *,
    version: int | str | None = None,
    columns: Sequence[str] | None = None,
    filter: str | None = None,
    storage_options: Mapping[str, str] | None = None,
    scanner_options: Mapping[str, Any] | None = None,
    **options: Unpack[ReadOptions],
) -> Dataset:
    """Read a version of a Lance dataset, by default the latest.

    `filter` is SQL, as Lance takes it, and `scanner_options` are further arguments of its scanner. Units are the
    fragments of the dataset, so `override_num_blocks` has no effect.
    """
    check_read_options("read_lance", options)
    check_instance("filter", filter, str, "a condition in SQL", optional=True)
    names = None if columns is None else tuple(check_names("columns", columns))
    storage = tuple(sorted((storage_options or {}).items()))
    lance = import_extra("lance", "read_lance")
    opened = lance.dataset(os.fspath(uri), version=version, storage_options=dict(storage) or None)
    more = tuple((scanner_options or {}).items())
    scan = tables.LanceScan(os.fspath(uri), opened.version, storage, names, filter, more)
    opened.scanner(columns=None if names is None else list(names), filter=filter, **dict(more)).projected_schema  # noqa: B018  checks them
    return Dataset(Read(tables.LanceSource(f"read_lance({os.fspath(uri)!r}, version={opened.version})", scan)))


@with_options(ReadOptions)
def read_zarr(
    path: str | os.PathLike[str],
    *,
    filesystem: Any = None,
    chunk_shapes: Mapping[str, Sequence[int]] | Sequence[int] | None = None,
    array_paths: Sequence[str] | None = None,
    allow_full_metadata_scan: bool = False,
    align_axis_0: bool = False,
    overlap: int = 0,
    **options: Unpack[ReadOptions],
) -> Dataset:
    """Read a Zarr store, one row per chunk: `array` (its path), `chunk_index`, `chunk_slices` and `chunk`.

    `chunk_shapes` are shapes to read instead of the store's own, of all arrays or by array; a shape may leave out the
    last axes. `array_paths` names the arrays; without it, a store without consolidated metadata needs
    `allow_full_metadata_scan=True`.

    With `align_axis_0=True` a row has a range of the first axis, `t_start` to `t_stop`, of all arrays, which must have
    one length: one column per array. `overlap` adds so many elements of the next range to each, beyond `t_stop`.
    `filesystem` is one of fsspec.
    """
    number = check_read_options("read_zarr", options)
    check_bool("allow_full_metadata_scan", allow_full_metadata_scan)
    check_int("overlap", overlap, at_least=0)
    if overlap and not check_bool("align_axis_0", align_axis_0):
        raise bad_value("overlap", "0 without align_axis_0=True", overlap)
    if not (filesystem is None or hasattr(filesystem, "get_mapper")):
        raise bad_value("filesystem", "one of fsspec, or None", filesystem)
    store = zarr.ZarrStore(os.fspath(path), filesystem)
    arrays = zarr.find_arrays(store, array_paths, allow_full_metadata_scan)
    rows = zarr.cut_aligned(arrays, chunk_shapes, overlap) if align_axis_0 else zarr.cut_arrays(arrays, chunk_shapes)
    return Dataset(Read(zarr.ZarrSource(f"read_zarr({os.fspath(path)!r})", store, tuple(rows), align_axis_0, number)))
