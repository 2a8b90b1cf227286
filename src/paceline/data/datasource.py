"""User-defined sources: a `Datasource` lists `ReadTask`s, each of which reads some rows.

The names are those of Ray Data. Tasks are listed once, when `read_datasource` is called, and are the units that data
processes read. A run resumes at a task's index in that list and a row number, so both must be the same every time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Unpack

import cloudpickle
import pyarrow as pa

from paceline._core.arguments import check_int, with_options
from paceline._core.lazy_imports import explain_module
from paceline.data.block import Block, Schema
from paceline.data.dataset import Dataset
from paceline.data.planning.plan import PlainSource, Read
from paceline.data.read import check_read_options
from paceline.data.sources.schemas import to_schema
from paceline.data.task_options import ReadOptions, warn_unused

_FEWEST = 16
_MOST = 10_000
_TASK_BYTES = 8 << 20


@dataclass(frozen=True)
class BlockMetadata:
    """What is known about a task's rows before they are read."""

    num_rows: int | None = None
    """None if unknown. A task that yields another number of rows fails."""
    size_bytes: int | None = None
    """Approximate size in memory."""
    exec_stats: Any = None
    task_exec_stats: Any = None
    input_files: Sequence[str] | None = None
    """Where the rows come from. Names the task if it has no other name."""


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
    """Lists what to read: subclasses implement `get_read_tasks`."""

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
    tasks = list(datasource.get_read_tasks(number))
    wrong = next((task for task in tasks if not callable(getattr(task, "read_fn", None))), None)
    if wrong is not None:
        raise TypeError(f"get_read_tasks() must return a list of paceline.data.ReadTask, got a {type(wrong).__name__}")
    name = f"read_datasource({datasource.get_name()})"
    units = tuple(_make_unit(task, index, len(tasks), name) for index, task in enumerate(tasks))
    _check_units(units)
    schema = next((task.schema for task in tasks if task.schema is not None), None)
    return Dataset(Read(ReadTaskSource(name, units, schema)))


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
class ReadTaskSource(PlainSource):
    name: str
    tasks: tuple[ReadTaskUnit, ...]
    arrow_schema: Any = None

    def units(self) -> Sequence[ReadTaskUnit]:
        return self.tasks

    def schema(self) -> Schema | None:
        return to_schema(self.arrow_schema) if isinstance(self.arrow_schema, pa.Schema) else None


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
