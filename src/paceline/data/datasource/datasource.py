"""User-defined sources: a `Datasource` lists `ReadTask`s, each of which reads some rows.

The names are those of Ray Data. Tasks are listed once, when `read_datasource` is called, and are the units that data
processes read. A run resumes at a task's index in that list and a row number, so both must be the same every time.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Annotated, Any, Self, Unpack

import cloudpickle
import pyarrow as pa

from paceline._core.arguments import bad_value, check_int, with_options
from paceline._core.lazy_imports import explain_module
from paceline.data.block import Block, BlockMetadata, Schema
from paceline.data.dataset import Dataset
from paceline.data.expressions import Expr
from paceline.data.planning.plan import PlainSource, Read
from paceline.data.read import check_read_options
from paceline.data.sources.schemas import to_schema
from paceline.data.task_options import ReadOptions, warn_unused

_FEWEST = 16
_MOST = 10_000
_TASK_BYTES = 8 << 20


class ReadTask:
    """Reads some rows: `read_fn()` returns batches, each a `pyarrow.Table`, a DataFrame or a dict of arrays.

    It runs in another process, once per read. Errors show `name`, and a checkpoint uses it to check that the data is
    the same: include a version, a size or a modification time.
    """

    def __init__(
        self,
        read_fn: Callable[[], Iterable[Any]],
        metadata: BlockMetadata | None = None,
        schema: pa.Schema | None = None,
        per_task_row_limit: int | None = None,
        *,
        name: str | None = None,
    ) -> None:
        if not callable(read_fn):
            raise TypeError(f"read_fn must be a function without arguments that returns batches, got {read_fn!r}")
        check_int("per_task_row_limit", per_task_row_limit, at_least=0, optional=True)
        self.read_fn = read_fn
        self.metadata = metadata if metadata is not None else BlockMetadata()
        self.schema = schema
        self.per_task_row_limit = per_task_row_limit
        self.name = name

    def __call__(self) -> Iterable[Any]:
        return self.read_fn()


class Datasource:
    """Lists what to read: subclasses implement `get_read_tasks`.

    If `supports_projection_pushdown` or `supports_predicate_pushdown` returns True, the source receives columns and
    conditions of later steps before its tasks are listed; the conditions are applied to its rows in any case.
    """

    _projection_map: dict[str, str] | None = None
    _predicate: Expr | None = None

    def get_name(self) -> str:
        """Return the name used in messages."""
        return type(self).__name__.removesuffix("Datasource") or "Datasource"

    def estimate_inmemory_data_size(self) -> int | None:
        """Estimate the in-memory size of all rows in bytes; None if unknown."""
        return None

    def get_read_tasks(
        self, parallelism: int, per_task_row_limit: int | None = None, data_context: Any = None
    ) -> Sequence[ReadTask]:
        """Return about `parallelism` tasks: the same ones in the same order every time."""
        raise NotImplementedError(f"{type(self).__name__} must implement get_read_tasks(parallelism)")

    @property
    def should_create_reader(self) -> bool:
        """Whether this is an older source with `create_reader`: none is."""
        return False

    @property
    def supports_distributed_reads(self) -> bool:
        """Whether tasks can run in several processes. If False, there is one, which runs all tasks."""
        return True

    def supports_projection_pushdown(self) -> bool:
        """Whether `get_read_tasks` heeds `get_projection_map()`: it then reads only these columns."""
        return False

    def supports_predicate_pushdown(self) -> bool:
        """Whether `get_read_tasks` heeds `get_current_predicate()`: it may then leave out rows that fail it."""
        return False

    def get_projection_map(self) -> dict[str, str] | None:
        """Return the columns that are needed, as a dict from their names to their names; None: all."""
        return self._projection_map

    def get_current_predicate(self) -> Expr | None:
        """Return the condition that all needed rows fulfil; None if there is none."""
        return self._predicate

    def apply_projection(self, projection_map: dict[str, str] | None) -> Datasource:
        """Return a copy that reads only these columns. Columns cannot be renamed on the way."""
        if projection_map is not None and any(old != new for old, new in projection_map.items()):
            raise bad_value("projection_map", "a dict from each column to itself", projection_map)
        changed = copy.copy(self)
        changed._projection_map = projection_map
        return changed

    def apply_predicate(self, predicate_expr: Expr) -> Datasource:
        """Return a copy that may leave out rows for which the condition, and any earlier one, is not true."""
        changed = copy.copy(self)
        before = self.get_current_predicate()
        changed._predicate = predicate_expr if before is None else before & predicate_expr
        return changed


class DatasourceOptions(ReadOptions, total=False):
    compute: Annotated[Any, None]


@with_options(DatasourceOptions)
def read_datasource(datasource: Datasource, **options: Unpack[DatasourceOptions]) -> Dataset:
    """Read a user-defined source, in the order of its tasks.

    `get_read_tasks` is called immediately, with `override_num_blocks` or a number derived from
    `estimate_inmemory_data_size`, independent of the machine.
    """
    if not callable(getattr(datasource, "get_read_tasks", None)) or isinstance(datasource, type):
        raise TypeError(f"datasource must be an instance of a paceline.data.Datasource, got {datasource!r}")
    warn_unused("read_datasource", options, ["compute"])
    number = check_read_options("read_datasource", options)
    if number is None:
        size = datasource.estimate_inmemory_data_size()
        check_int("estimate_inmemory_data_size()", size, at_least=0, optional=True)
        number = min(max(-(-(size or 0) // _TASK_BYTES), _FEWEST), _MOST)
    source = DatasourceRead(datasource, number)
    return Dataset(Read(source.validate()))


def _list_units(datasource: Datasource, number: int) -> tuple[tuple[ReadTaskUnit, ...], Any]:
    """Ask a source for its tasks; return them as units, with their schema if it is known."""
    tasks = list(datasource.get_read_tasks(number))
    wrong = next((task for task in tasks if not callable(getattr(task, "read_fn", None))), None)
    if wrong is not None:
        raise TypeError(f"get_read_tasks() must return a list of paceline.data.ReadTask, got a {type(wrong).__name__}")
    name = f"read_datasource({datasource.get_name()})"
    units = tuple(_make_unit(task, index, len(tasks), name) for index, task in enumerate(tasks))
    _check_units(units)
    if units and not getattr(datasource, "supports_distributed_reads", True):
        units = (_join_units(name, units),)
    schema = next((task.schema for task in tasks if task.schema is not None), None)
    return units, schema


def _join_units(name: str, units: Sequence[ReadTaskUnit]) -> ReadTaskUnit:
    """One unit of all: a source that does not support distributed reads is read by one process."""
    numbers, sizes = [unit.num_rows for unit in units], [unit.num_bytes for unit in units]
    num_rows = None if None in numbers else sum(number or 0 for number in numbers)
    num_bytes = None if None in sizes else sum(size or 0 for size in sizes)
    return ReadTaskUnit(name, partial(_read_all, units), num_rows, num_bytes, None)


def _read_all(units: Sequence[ReadTaskUnit]) -> Iterator[Block]:
    for unit in units:
        yield from unit.read()


@dataclass(frozen=True, eq=False)
class ReadTaskUnit:
    name: str
    read_fn: Callable[[], Iterable[Any]]
    num_rows: int | None
    num_bytes: int | None
    limit: int | None

    def read(self) -> Iterator[Block]:
        num_read = 0
        for batch in _check_batches(self.read_fn(), self.name):
            block = Block.from_batch(batch)
            if self.limit is not None:
                block = block.slice(0, self.limit - num_read)
            num_read += block.num_rows
            yield block
            if self.limit is not None and num_read >= self.limit:
                return
            if self.num_rows is not None and num_read > self.num_rows:
                break
        if self.num_rows is not None and num_read != self.num_rows:
            actual = "more" if num_read > self.num_rows else f"only {num_read}"
            raise ValueError(
                f"{self.name} must have {self.num_rows} rows according to its metadata, got {actual}\n\n"
                "hint: use BlockMetadata(num_rows=None) if the number is unknown before the rows are read"
            )


@dataclass(frozen=True, eq=False)
class DatasourceRead(PlainSource):
    datasource: Datasource
    parallelism: int

    @property
    def name(self) -> str:
        return f"read_datasource({self.datasource.get_name()})"

    @cached_property
    def _units_and_schema(self) -> tuple[tuple[ReadTaskUnit, ...], Any]:
        return _list_units(self.datasource, self.parallelism)

    def validate(self) -> Self:
        """Ask for the tasks now, so that errors point at the call; return self."""
        self.units()
        return self

    def units(self) -> Sequence[ReadTaskUnit]:
        return self._units_and_schema[0]

    def schema(self) -> Schema | None:
        schema = self._units_and_schema[1]
        return to_schema(schema) if isinstance(schema, pa.Schema) else None

    def project_columns(self, columns: Sequence[str]) -> DatasourceRead | None:
        if not columns or not _supports(self.datasource, "supports_projection_pushdown"):
            return None
        return replace(self, datasource=self.datasource.apply_projection({name: name for name in columns}))

    def prune_units(self, predicate: Expr) -> DatasourceRead | None:
        if not _supports(self.datasource, "supports_predicate_pushdown"):
            return None
        return replace(self, datasource=self.datasource.apply_predicate(predicate))


def _supports(datasource: Any, question: str) -> bool:
    return bool(getattr(datasource, question, lambda: False)())


def _make_unit(task: ReadTask, index: int, number: int, source: str) -> ReadTaskUnit:
    metadata, limit = task.metadata, task.per_task_row_limit
    files = metadata.input_files
    name = getattr(task, "name", None) or (", ".join(files) if files else f"{source} (task {index + 1} of {number})")
    num_rows = check_int(f"num_rows of {name}", metadata.num_rows, at_least=0, optional=True)
    if num_rows is not None and limit is not None:
        num_rows = min(num_rows, limit)
    return ReadTaskUnit(name, task.read_fn, num_rows, metadata.size_bytes, limit)


def _check_units(units: Sequence[ReadTaskUnit]) -> None:
    names = [unit.name for unit in units]
    if len(set(names)) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(
            f"tasks must have different names, got two of {twice!r}\n\nhint: ReadTask(..., name='rows 0 to 999')"
        )
    if units:
        try:
            cloudpickle.dumps(units[0])
        except Exception as error:
            raise TypeError(
                f"cannot pickle {units[0].name}: {type(error).__name__}: {error}\n\n"
                "hint: open files and connections in read_fn itself"
            ) from error


def _check_batches(batches: Any, name: str) -> Iterable[Any]:
    """Check the result of `read_fn`. A table is rejected: it would iterate over its columns."""
    single = isinstance(batches, str | bytes | Mapping | pa.Table | pa.RecordBatch) or hasattr(batches, "columns")
    if single or not isinstance(batches, Iterable):
        raise TypeError(
            f"{name}: read_fn() must return an iterable of batches, got a {type(batches).__name__}"
            "\n\nhint: return [table], or yield each"
        )
    return batches


explain_module(__name__)
