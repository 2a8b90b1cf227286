"""Sources of the user's own: a `Datasource` lists `ReadTask`s, each of which reads some rows.

The names are those of Ray Data. The tasks are listed once, when `read_datasource` is called, and are the units that
data processes read. Where an interrupted run goes on is said by the place of a task in that list and a number of its
rows, so both have to be the same every time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import cloudpickle
import pyarrow as pa

from paceline.data.arguments import check_common, is_count
from paceline.data.block import Block, Schema
from paceline.data.dataset import Dataset
from paceline.data.expressions import Expr
from paceline.data.plan import Read
from paceline.data.sources.schemas import as_schema

_FEWEST = 16
_MOST = 10_000
_TASK_BYTES = 8 << 20


@dataclass(frozen=True)
class BlockMetadata:
    """What is known of a task's rows before they are read."""

    num_rows: int | None = None
    """None where it is not known. A number is held to: a task that gives another one fails."""
    size_bytes: int | None = None
    """About how much memory they take."""
    exec_stats: Any = None
    task_exec_stats: Any = None
    input_files: Sequence[str] | None = None
    """Where the rows come from: the name of a task that has no other."""


class ReadTask:
    """Some rows: `read_fn()` gives batches of them, each a `pyarrow.Table`, a DataFrame or a dict of arrays.

    It runs in another process, as often as rows are asked for. `name` is what errors call it, and how a checkpoint
    knows that it was made from the same data: put a version, a size or a time of change into it.
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
            raise TypeError(f"read_fn={read_fn!r} must be a function without arguments that gives batches of rows")
        if per_task_row_limit is not None and not is_count(per_task_row_limit):
            raise ValueError(f"per_task_row_limit={per_task_row_limit!r} must be a whole number of 0 or more, or None")
        self.read_fn = read_fn
        self.metadata = metadata if metadata is not None else BlockMetadata()
        self.schema = schema
        self.per_task_row_limit = per_task_row_limit
        self.name = name

    def __call__(self) -> Iterable[Any]:
        return self.read_fn()


class Datasource:
    """Says what there is to read: a subclass has `get_read_tasks`."""

    def get_name(self) -> str:
        """As messages call it."""
        return type(self).__name__.removesuffix("Datasource") or "Datasource"

    def estimate_inmemory_data_size(self) -> int | None:
        """About how many bytes all rows take in memory; None where nothing is known."""
        return None

    def get_read_tasks(
        self, parallelism: int, per_task_row_limit: int | None = None, data_context: Any = None
    ) -> Sequence[ReadTask]:
        """About `parallelism` tasks, more or fewer: the same ones in the same order every time."""
        raise NotImplementedError(f"{type(self).__name__} has no get_read_tasks(parallelism): it lists what to read")


def read_datasource(
    datasource: Datasource, *, concurrency: int | None = None, override_num_blocks: int | None = None
) -> Dataset:
    """The rows of a source of your own, in the order of its tasks.

    `get_read_tasks` is called now, with `override_num_blocks` or a number that follows from
    `estimate_inmemory_data_size` and not from the machine. `concurrency` is accepted; how many processes read is the
    `DataContext`'s matter.
    """
    if not callable(getattr(datasource, "get_read_tasks", None)) or isinstance(datasource, type):
        raise TypeError(f"datasource={datasource!r} must be an instance of a paceline.data.Datasource")
    check_common(concurrency, override_num_blocks)
    number = override_num_blocks or min(max(-(-_estimated(datasource) // _TASK_BYTES), _FEWEST), _MOST)
    found = list(datasource.get_read_tasks(number))
    wrong = next((task for task in found if not callable(getattr(task, "read_fn", None))), None)
    if wrong is not None:
        raise TypeError(f"get_read_tasks() must give a list of paceline.data.ReadTask, not of {type(wrong).__name__}")
    name = f"read_datasource({datasource.get_name()})"
    units = tuple(_unit(task, index, len(found), name) for index, task in enumerate(found))
    _check(units)
    return Dataset(Read(Tasks(name, units, next((task.schema for task in found if task.schema is not None), None))))


@dataclass(frozen=True, eq=False)
class Rows:
    """A unit: what one task reads."""

    name: str
    read_fn: Callable[[], Iterable[Any]]
    num_rows: int | None
    num_bytes: int | None
    limit: int | None

    def read(self) -> Iterator[Block]:
        seen = 0
        for batch in _batches(self.read_fn(), self.name):
            block = Block.from_batch(batch)
            if self.limit is not None:
                block = block.slice(0, self.limit - seen)
            seen += block.num_rows
            yield block
            if self.limit is not None and seen >= self.limit:
                return
            if self.num_rows is not None and seen > self.num_rows:
                break
        if self.num_rows is not None and seen != self.num_rows:
            said = "more" if seen > self.num_rows else f"only {seen}"
            raise ValueError(
                f"{self.name} was to have {self.num_rows} rows, as its metadata says, and gave {said}\n\n"
                "hint: BlockMetadata(num_rows=None) where the number is not known before the rows are read"
            )


@dataclass(frozen=True, eq=False)
class Tasks:
    """The source of `read_datasource`."""

    name: str
    tasks: tuple[Rows, ...]
    arrow_schema: Any = None

    def units(self) -> Sequence[Rows]:
        return self.tasks

    def schema(self) -> Schema | None:
        return as_schema(self.arrow_schema) if isinstance(self.arrow_schema, pa.Schema) else None

    def projected(self, columns: Sequence[str]) -> None:
        return None

    def pruned(self, predicate: Expr) -> None:
        return None


def _estimated(datasource: Datasource) -> int:
    size = datasource.estimate_inmemory_data_size()
    if size is not None and not is_count(size):
        raise ValueError(f"estimate_inmemory_data_size() gave {size!r}: it must be a number of bytes, or None")
    return size or 0


def _unit(task: ReadTask, index: int, number: int, source: str) -> Rows:
    metadata, limit = task.metadata, task.per_task_row_limit
    files = metadata.input_files
    name = getattr(task, "name", None) or (", ".join(files) if files else f"{source} (task {index + 1} of {number})")
    num_rows = metadata.num_rows
    if num_rows is not None and not is_count(num_rows):
        raise ValueError(f"{name}: num_rows={num_rows!r} must be a whole number of 0 or more, or None")
    if num_rows is not None and limit is not None:
        num_rows = min(num_rows, limit)
    return Rows(name, task.read_fn, num_rows, metadata.size_bytes, limit)


def _check(units: Sequence[Rows]) -> None:
    names = [unit.name for unit in units]
    twice = next((name for name in names if names.count(name) > 1), None) if len(set(names)) < len(names) else None
    if twice is not None:
        raise ValueError(
            f"two tasks have the name {twice!r}: a checkpoint could not tell them apart\n\n"
            "hint: ReadTask(..., name='rows 0 to 999')"
        )
    if units:
        try:
            cloudpickle.dumps(units[0])
        except Exception as error:
            raise TypeError(
                f"{units[0].name} cannot be sent to another process: {type(error).__name__}: {error}\n\n"
                "hint: open files and connections in read_fn itself"
            ) from error


def _batches(found: Any, name: str) -> Iterable[Any]:
    """A table is iterable too, over its columns."""
    single = isinstance(found, str | bytes | Mapping | pa.Table | pa.RecordBatch) or hasattr(found, "columns")
    if single or not isinstance(found, Iterable):
        raise TypeError(
            f"{name}: read_fn() gave a {type(found).__name__}, and must give several batches, one after the other"
            "\n\nhint: return [table], or yield each"
        )
    return found
