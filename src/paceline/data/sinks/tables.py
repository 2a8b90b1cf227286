"""Writes rows to tables of Delta Lake, Iceberg, Lance and SQL databases, through their own libraries.

Rows come from the data processes as a stream, and this process hands them to the library. One commit of the table, or
one transaction of the database, makes all rows visible at once; a write that fails or is killed changes nothing.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from paceline._core.arguments import bad_value, check_choice, check_instance, check_int, check_names, join_or
from paceline._core.lazy_imports import import_extra
from paceline.data.planning.plan_queries import find_schema, stream_deliveries
from paceline.data.sources.schemas import conform_table
from paceline.data.task_options import warn_unused
from paceline.data.write import Mode, SaveMode

if TYPE_CHECKING:
    from paceline.data.dataset import Dataset

_CHUNK_BYTES = 64 << 20
"""How much goes to a table of Iceberg at a time."""


class TableStream:
    """The rows of a dataset as Arrow batches of one schema, that of the first rows or a given one."""

    def __init__(self, function: str, dataset: Dataset, schema: Any = None) -> None:
        self.error: BaseException | None = None
        self._function = function
        self._deliveries = stream_deliveries(dataset._plan)
        self._first = self._next_table()
        if schema is not None:
            self.schema = schema
        elif self._first is not None:
            self.schema = self._first.schema
        else:
            found = find_schema(dataset._plan)
            fields = zip(found.names, found.types, strict=True) if found is not None else ()
            self.schema = pa.schema([(name, kind) for name, kind in fields if isinstance(kind, pa.DataType)])

    def tables(self) -> Iterator[Any]:
        try:
            table = self._first
            while table is not None:
                yield self._conform(table)
                table = self._next_table()
        except BaseException as error:
            self.error = error
            raise

    def reader(self) -> Any:
        batches = (batch for table in self.tables() for batch in table.to_batches())
        return pa.RecordBatchReader.from_batches(self.schema, batches)

    def close(self) -> None:
        self._deliveries.close()

    @contextlib.contextmanager
    def explain_errors(self) -> Iterator[None]:
        """Raise an error of the rows itself, not what a library makes of it."""
        try:
            yield
        except BaseException as error:
            if self.error is not None and self.error is not error and not isinstance(self.error, GeneratorExit):
                raise self.error from None
            raise

    def _next_table(self) -> Any:
        return next((each.block.to_arrow() for each in self._deliveries if each.block.num_rows), None)

    def _conform(self, table: Any) -> Any:
        for name in table.column_names:
            if name not in self.schema.names:
                names = ", ".join(map(repr, self.schema.names))
                raise ValueError(f"{self._function}: some rows have a column {name!r}, and the table has {names}")
        try:
            return conform_table(table, self.schema)
        except pa.ArrowException as error:
            raise ValueError(
                f"{self._function}: some rows do not fit the types of the table: {error}\n\n"
                "hint: convert the column with map_batches or with_column"
            ) from error


@contextlib.contextmanager
def open_table_stream(function: str, dataset: Dataset, schema: Any = None) -> Iterator[TableStream]:
    stream = TableStream(function, dataset, schema)
    with contextlib.closing(stream), stream.explain_errors():
        yield stream


def _check_table_options(function: str, ray_remote_args: Any, concurrency: Any) -> None:
    """`concurrency` has no effect: one process writes."""
    warn_unused(function, {"ray_remote_args": ray_remote_args}, ["ray_remote_args"])
    check_int("concurrency", concurrency, at_least=1, optional=True)


def _check_mode(mode: Any, allowed: Sequence[SaveMode], why: str) -> SaveMode:
    if mode not in allowed:
        raise bad_value("mode", join_or(repr(each.value) for each in allowed), mode, why)
    return SaveMode(mode)


def write_delta(
    dataset: Dataset,
    path: str | os.PathLike[str],
    *,
    mode: Mode = SaveMode.APPEND,
    partition_by: Sequence[str] | None = None,
    storage_options: Mapping[str, str] | None = None,
    schema_mode: str | None = "merge",
    name: str | None = None,
    description: str | None = None,
    ray_remote_args: Any = None,
    concurrency: int | None = None,
) -> None:
    """Write the rows to a Delta Lake table, in one commit. A new table gets their columns.

    `schema_mode="merge"` adds columns that the table lacks; "overwrite" is for `mode="overwrite"`; None refuses rows
    of another schema. Tensor columns are not supported.
    """
    deltalake = import_extra("deltalake", "write_delta")
    _check_table_options("write_delta", ray_remote_args, concurrency)
    check_choice("schema_mode", schema_mode, ("merge", "overwrite", None))
    columns = None if partition_by is None else list(check_names("partition_by", partition_by))
    modes = [each for each in SaveMode if each is not SaveMode.UPSERT]
    save_mode = _check_mode(mode, modes, "DeltaTable.merge of deltalake updates rows")
    how: Any = "error" if save_mode is SaveMode.CREATE else save_mode.value
    options = dict(storage_options or {}) or None
    if save_mode in (SaveMode.CREATE, SaveMode.ERROR, SaveMode.IGNORE):
        if deltalake.DeltaTable.is_deltatable(os.fspath(path), options):
            if save_mode is SaveMode.IGNORE:
                return
            raise FileExistsError(f"write_delta: there is a table at {os.fspath(path)} (mode={save_mode.value!r})")
        schema_mode = None
    with open_table_stream("write_delta", dataset) as stream:
        deltalake.write_deltalake(
            os.fspath(path),
            stream.reader(),
            mode=how,
            partition_by=columns,
            storage_options=options,
            schema_mode=schema_mode,
            name=name,
            description=description,
        )


def write_iceberg(
    dataset: Dataset,
    table_identifier: str,
    catalog_kwargs: Mapping[str, Any] | None = None,
    *,
    snapshot_properties: Mapping[str, str] | None = None,
    mode: Mode = SaveMode.APPEND,
    overwrite_filter: Any = None,
    upsert_kwargs: Mapping[str, Any] | None = None,
    overwrite_kwargs: Mapping[str, Any] | None = None,
    ray_remote_args: Any = None,
    concurrency: int | None = None,
) -> None:
    """Write the rows to an existing Iceberg table, in one commit.

    `mode="overwrite"` first deletes the rows that `overwrite_filter`, an expression of pyiceberg, selects; without it,
    all. `mode="upsert"` updates the rows with the same keys, which are the table's identifier fields or `join_cols` in
    `upsert_kwargs`, and adds the others; for that, all new rows must fit in memory. `upsert_kwargs` and
    `overwrite_kwargs` are further arguments of pyiceberg.
    """
    from paceline.data.read_tables import load_iceberg_table

    _check_table_options("write_iceberg", ray_remote_args, concurrency)
    modes = (SaveMode.APPEND, SaveMode.OVERWRITE, SaveMode.UPSERT)
    save_mode = _check_mode(mode, modes, "tables are created with a catalog of pyiceberg")
    if overwrite_filter is not None and save_mode is not SaveMode.OVERWRITE:
        raise bad_value("overwrite_filter", "None unless mode is 'overwrite'", overwrite_filter)
    table = load_iceberg_table("write_iceberg", table_identifier, catalog_kwargs)
    properties = dict(snapshot_properties or {})
    with open_table_stream("write_iceberg", dataset, table.schema().as_arrow()) as stream:
        if save_mode is SaveMode.UPSERT:
            rows = pa.Table.from_batches([*stream.reader()], stream.schema)
            table.upsert(rows, **dict(upsert_kwargs or {}), snapshot_properties=properties)
            return
        with table.transaction() as transaction:
            if save_mode is SaveMode.OVERWRITE:
                expressions = import_extra("pyiceberg.expressions", "write_iceberg")
                where = overwrite_filter if overwrite_filter is not None else expressions.AlwaysTrue()
                transaction.delete(where, snapshot_properties=properties, **dict(overwrite_kwargs or {}))
            for chunk in _join_tables(stream.tables()):
                transaction.append(chunk, snapshot_properties=properties)


def _join_tables(tables: Iterator[Any]) -> Iterator[Any]:
    """Join small tables: each that is appended becomes a file or more."""
    waiting: list[Any] = []
    for table in tables:
        waiting.append(table)
        if sum(each.nbytes for each in waiting) >= _CHUNK_BYTES:
            yield pa.concat_tables(waiting)
            waiting = []
    if waiting:
        yield pa.concat_tables(waiting)


def write_lance(
    dataset: Dataset,
    path: str | os.PathLike[str],
    *,
    schema: pa.Schema | None = None,
    mode: Mode = SaveMode.CREATE,
    min_rows_per_file: int = 1024 * 1024,
    max_rows_per_file: int = 64 * 1024 * 1024,
    data_storage_version: str | None = None,
    storage_options: Mapping[str, str] | None = None,
    ray_remote_args: Any = None,
    concurrency: int | None = None,
) -> None:
    """Write the rows to a Lance dataset, in one commit. `min_rows_per_file` has no effect: files are cut by the most.

    `schema` is that of the dataset; the default is that of the first rows.
    """
    lance = import_extra("lance", "write_lance")
    _check_table_options("write_lance", ray_remote_args, concurrency)
    check_instance("schema", schema, pa.Schema, "a pyarrow.Schema", optional=True)
    check_int("min_rows_per_file", min_rows_per_file, at_least=1)
    check_int("max_rows_per_file", max_rows_per_file, at_least=1)
    modes = (SaveMode.CREATE, SaveMode.ERROR, SaveMode.APPEND, SaveMode.OVERWRITE)
    save_mode = _check_mode(mode, modes, "merge_insert of lance updates rows")
    how = {SaveMode.ERROR: "create"}.get(save_mode, save_mode.value)
    with open_table_stream("write_lance", dataset, schema) as stream:
        lance.write_dataset(
            stream.reader(),
            os.fspath(path),
            schema=stream.schema,
            mode=how,
            max_rows_per_file=max_rows_per_file,
            data_storage_version=data_storage_version,
            storage_options=dict(storage_options or {}) or None,
        )


def write_sql(
    dataset: Dataset,
    sql: str,
    connection_factory: Callable[[], Any],
    *,
    ray_remote_args: Any = None,
    concurrency: int | None = None,
) -> None:
    """Run a statement with each row's values, in the order of the columns, in one transaction.

    `sql` is such as `INSERT INTO houses VALUES (?, ?)`, with the placeholders of the database, and
    `connection_factory` returns a DB-API 2 connection. If a row fails, all are rolled back.
    """
    _check_table_options("write_sql", ray_remote_args, concurrency)
    if not isinstance(sql, str) or not sql.strip():
        raise bad_value("sql", "a statement such as 'INSERT INTO houses VALUES (?, ?)'", sql)
    if not callable(connection_factory):
        raise bad_value("connection_factory", "a function that opens a connection", connection_factory)
    with contextlib.ExitStack() as stack:
        rows = stack.enter_context(contextlib.closing(stream_deliveries(dataset._plan)))
        connection = stack.enter_context(contextlib.closing(connection_factory()))
        cursor = stack.enter_context(contextlib.closing(connection.cursor()))
        names: list[str] | None = None
        try:
            for delivered in rows:
                names = list(delivered.block.columns) if names is None else names
                values = [tuple(row.values()) for row in delivered.block.select(names).rows()]
                if values:
                    cursor.executemany(sql, values)
            connection.commit()
        except BaseException:
            connection.rollback()
            raise
