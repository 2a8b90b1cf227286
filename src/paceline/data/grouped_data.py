"""GroupedData, the result of `Dataset.groupby`: groups of rows to aggregate or to pass to a function."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Unpack

from paceline._core.arguments import bad_value, with_options
from paceline._core.call_errors import explain_calls
from paceline.data.aggregate import AggregateFn, ColumnAggregates, Count, check_aggregates
from paceline.data.block import Block
from paceline.data.expressions import Expr, as_expr
from paceline.data.planning.barriers import GroupBy, GroupRows
from paceline.data.planning.plan import Map, PlanNode, PoolSpec, Transform, TransformScope
from paceline.data.planning.sort_keys import SortKeys
from paceline.data.task_options import TaskOptions, warn_unused
from paceline.data.transforms.columns import WithColumn
from paceline.data.transforms.rows import AnyFormat, MapBatches

if TYPE_CHECKING:
    from paceline.data.dataset import Dataset

_OUTPUT_BYTES = 4 << 20
"""Results of groups are joined into blocks of about this many bytes."""


@explain_calls
class GroupedData(ColumnAggregates["Dataset"]):
    """A dataset grouped by some columns. Results are sorted by these; missing keys form one group."""

    def __init__(self, plan: PlanNode, key: str | Sequence[str] | None) -> None:
        self._plan = plan
        self._keys = (key,) if isinstance(key, str) else tuple(key or ())
        if not all(isinstance(name, str) for name in self._keys) or len(set(self._keys)) < len(self._keys):
            raise bad_value("key", "the name of a column or a list of different ones", key)

    def aggregate(self, *aggs: AggregateFn) -> Dataset:
        """Return one row per group: its keys, and a column for each aggregate."""
        from paceline.data.dataset import Dataset

        return Dataset(GroupBy(self._plan, self._keys, check_aggregates(aggs, self._keys)))

    def count(self) -> Dataset:
        """Count the rows of each group, as `count()`."""
        return self.aggregate(Count())

    def map_groups(
        self, fn: Callable[..., Any] | type, *, batch_format: AnyFormat = "default", **options: Any
    ) -> Dataset:
        """Call a function, a generator function or a class with each group as a batch, to return any number of rows.

        The other arguments are those of `map_batches`: `fn_args`, `fn_kwargs`, `fn_constructor_args`, `num_cpus`,
        `concurrency` and so on. A group must fit in memory. With `on_error="skip"`, a failing group is dropped.
        """
        from paceline.data.dataset import Dataset

        if "batch_size" in options:
            raise TypeError("map_groups() has no argument 'batch_size': a batch is a group")
        grouped = GroupRows(self._plan, self._keys)
        # `map_batches` validates the function. Only the transform of its plan node is used, one group at a time.
        mapped = Dataset(grouped).map_batches(fn, batch_size=None, batch_format=batch_format, **options)._plan
        assert isinstance(mapped, Map), "map_batches makes a Map"
        assert isinstance(mapped.transform, MapBatches), "of batches"
        return Dataset(Map(grouped, MapGroups(self._keys, replace(mapped.transform, can_divide=False))))

    @with_options(TaskOptions)
    def with_column(self, column_name: str, expr: Expr, **options: Unpack[TaskOptions]) -> Dataset:
        """Add or replace a column computed by an expression, which sees one group at a time. Rows are sorted by key."""
        from paceline.data.dataset import Dataset

        warn_unused("with_column", options)
        computed = WithColumn(check_column_name(column_name), check_expr(expr))
        return Dataset(Map(GroupRows(self._plan, self._keys), MapGroups(self._keys, computed)))

    def _aggregate_columns(self, on: str | Sequence[str] | None, of: Callable[[str], AggregateFn]) -> Dataset:
        from paceline.data.dataset import Dataset

        if on is None:
            on = [name for name in Dataset(self._plan).columns() or () if name not in self._keys]
        return self.aggregate(*map(of, [on] if isinstance(on, str) else on))


def check_column_name(name: Any) -> str:
    if not isinstance(name, str):
        raise TypeError(f"column_name must be the name of a column, got {name!r}")
    return name


def check_expr(expr: Any) -> Expr:
    if callable(expr):
        raise TypeError("expr must be an expression of col(), got a function\n\nhint: use add_column for a function")
    return as_expr(expr)


@dataclass(frozen=True)
class MapGroups(Transform):
    """Applies a transform to each group: consecutive rows with equal keys, regardless of block boundaries."""

    keys: tuple[str, ...]
    transform: Transform

    @property
    def pool(self) -> PoolSpec | None:
        return self.transform.pool

    @property
    def name(self) -> str:
        return self.transform.name.replace("map_batches", "map_groups")

    def apply(self, blocks: Iterator[Block], scope: TransformScope) -> Iterator[Block]:
        pending: list[Block] = []
        size = 0
        for group in split_groups(blocks, SortKeys.ascending(self.keys)):
            for block in self.transform.apply(iter([group]), scope):
                if not block.num_rows:
                    continue
                if pending and (size >= _OUTPUT_BYTES or pending[-1].schema != block.schema):
                    yield Block.concat(pending)
                    pending, size = [], 0
                pending.append(block)
                size += block.nbytes
        if pending:
            yield Block.concat(pending)


def split_groups(blocks: Iterator[Block], keys: SortKeys) -> Iterator[Block]:
    """Split rows that are sorted by keys into one block per group."""
    pending: list[Block] = []
    for block in blocks:
        if not block.num_rows:
            continue
        if pending and keys.sort_key(pending[-1], pending[-1].num_rows - 1) != keys.sort_key(block, 0):
            yield Block.concat(pending)
            pending = []
        starts = [*keys.group_starts(block).tolist(), block.num_rows]
        for begin, stop in pairwise(starts):
            if pending and begin:
                yield Block.concat(pending)
                pending = []
            pending.append(block.slice(begin, stop))
    if pending:
        yield Block.concat(pending)
