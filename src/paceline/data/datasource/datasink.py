"""User-defined sinks: a `Datasink` writes the rows of each unit, and learns when all are written.

The names are those of Ray Data. `write` runs in the data processes, once per unit; a unit whose process dies is written
again, so it should replace what it wrote before, keyed by the unit's number.
"""

from __future__ import annotations

import contextlib
import pickle
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import pyarrow as pa

from paceline._core.arguments import check_int
from paceline._core.lazy_imports import explain_module
from paceline.data.block import Block
from paceline.data.planning.plan import Map, PoolSpec, Transform, TransformScope
from paceline.data.planning.plan_queries import find_schema, stream_deliveries
from paceline.data.task_options import warn_unused

if TYPE_CHECKING:
    from paceline.data.dataset import Dataset

R = TypeVar("R")


@dataclass(frozen=True)
class WriteResult(Generic[R]):
    """What was written: the number and size of the rows, and what each `write` returned, in the order of units."""

    num_rows: int
    size_bytes: int
    write_returns: list[R]


@dataclass(frozen=True)
class WriteTaskContext:
    """What a `write` is about. Ray's name for it is `TaskContext`."""

    task_idx: int
    """The number of the unit, in order."""
    op_name: str = "write"
    kwargs: dict[str, Any] = field(default_factory=dict)


class Datasink(Generic[R]):
    """Writes rows: subclasses implement `write`."""

    def get_name(self) -> str:
        """Return the name used in messages."""
        return type(self).__name__.removesuffix("Datasink") or "Datasink"

    def on_write_start(self, schema: pa.Schema | None = None) -> None:
        """Called once before the first `write`, in the process of the caller; `schema` if it is known."""

    def write(self, blocks: Iterable[pa.Table], ctx: WriteTaskContext) -> R:
        """Write the rows of a unit, given as Arrow tables; what it returns must be picklable."""
        raise NotImplementedError(f"{type(self).__name__} must implement write(blocks, ctx)")

    def on_write_complete(self, write_result: WriteResult[R]) -> None:
        """Called once after the last `write`, in the process of the caller: publish the rows here."""

    def on_write_failed(self, error: Exception) -> None:
        """Called if a `write` or `on_write_complete` raised, or the caller was interrupted: clean up here."""

    @property
    def supports_distributed_writes(self) -> bool:
        """If False, one process at a time writes."""
        return True

    @property
    def min_rows_per_write(self) -> int | None:
        """If not None, rows of several units are given to one `write`, which then runs in the caller's process."""
        return None


@dataclass(frozen=True, eq=False)
class WriteToDatasink(Transform):
    """Gives the rows of each unit to a datasink, and yields what it returned."""

    label = "write_datasink({0.sink_name})"
    datasink: Any
    sink_name: str
    pool: PoolSpec | None = None

    def apply(self, blocks: Iterator[Block], scope: TransformScope) -> Iterator[Block]:
        yield _write_blocks(self.datasink, blocks, scope.number)


def _write_blocks(datasink: Any, blocks: Iterable[Block], number: int) -> Block:
    num_rows = num_bytes = 0

    def tables() -> Iterator[pa.Table]:
        nonlocal num_rows, num_bytes
        for block in blocks:
            if block.num_rows:
                num_rows, num_bytes = num_rows + block.num_rows, num_bytes + block.nbytes
                yield block.to_arrow()

    remaining = tables()
    returned = datasink.write(remaining, WriteTaskContext(number))
    if next(remaining, None) is not None:
        raise ValueError(f"{type(datasink).__name__}.write must take all blocks, and it returned before their end")
    row = {"num_rows": num_rows, "num_bytes": num_bytes, "returned": pickle.dumps(returned)}
    return Block.from_rows([row])


def write_datasink(
    dataset: Dataset, datasink: Datasink[Any], *, ray_remote_args: Any = None, concurrency: int | None = None
) -> None:
    """Write the rows to a place of your own: see `Datasink`."""
    if not callable(getattr(datasink, "write", None)) or isinstance(datasink, type):
        raise TypeError(f"datasink must be an instance of a paceline.data.Datasink, got {datasink!r}")
    warn_unused("write_datasink", {"ray_remote_args": ray_remote_args}, ["ray_remote_args"])
    check_int("concurrency", concurrency, at_least=1, optional=True)
    from paceline.data.datasource.file_datasink import FileDatasink, write_file_datasink

    least = check_int("min_rows_per_write", datasink.min_rows_per_write, at_least=1, optional=True)
    number = concurrency if datasink.supports_distributed_writes else 1
    datasink.on_write_start(_find_arrow_schema(dataset))
    try:
        if isinstance(datasink, FileDatasink):
            datasink.on_write_complete(WriteResult(*write_file_datasink(dataset, datasink, concurrency), []))
            return
        if least is not None:
            written = [
                _write_blocks(datasink, blocks, index) for index, blocks in enumerate(_join_units(dataset, least))
            ]
        else:
            pool = None if number is None else PoolSpec(1, number)
            plan = Map(dataset._plan, WriteToDatasink(datasink, datasink.get_name(), pool))
            with contextlib.closing(stream_deliveries(plan)) as deliveries:
                written = [delivered.block for delivered in deliveries]
        rows = [row for block in written for row in block.rows()]
        returns = [pickle.loads(row["returned"]) for row in rows]  # noqa: S301  of our own processes
        sums = sum(row["num_rows"] for row in rows), sum(row["num_bytes"] for row in rows)
        datasink.on_write_complete(WriteResult(*sums, returns))
    except BaseException as error:
        datasink.on_write_failed(error if isinstance(error, Exception) else RuntimeError(f"interrupted: {error!r}"))
        raise


def _find_arrow_schema(dataset: Dataset) -> pa.Schema | None:
    found = find_schema(dataset._plan)
    if found is None or not all(isinstance(kind, pa.DataType) for kind in found.types):
        return None
    return pa.schema(list(zip(found.names, found.types, strict=True)))


def _join_units(dataset: Dataset, least: int) -> Iterator[list[Block]]:
    """Rows of consecutive units, at least so many at a time, but for the last."""
    waiting: list[Block] = []
    unit = 0
    with contextlib.closing(stream_deliveries(dataset._plan)) as deliveries:
        for delivered in deliveries:
            if delivered.unit != unit and sum(block.num_rows for block in waiting) >= least:
                yield waiting
                waiting = []
            unit = delivered.unit
            waiting.append(delivered.block)
    if waiting:
        yield waiting


explain_module(__name__)
