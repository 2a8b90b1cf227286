"""What `Dataset.groupby` gives: rows that belong together, to be aggregated or handed to a function."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from paceline.data.aggregate import AggregateFn, Count, Max, Mean, Min, Std, Sum, checked
from paceline.data.barriers import GroupBy, GroupRows
from paceline.data.block import BatchFormat, Block
from paceline.data.keys import Keys
from paceline.data.plan import Map, Node
from paceline.data.transform import Pool, Scope, Transform

if TYPE_CHECKING:
    from paceline.data.dataset import Dataset

_OUTPUT_BYTES = 4 << 20
"""What comes of groups is joined into blocks of about so many bytes."""


class GroupedData:
    """The rows of a dataset by the values of some columns. Results are ordered by those; missing keys are a group."""

    def __init__(self, plan: Node, key: str | Sequence[str] | None) -> None:
        self._plan = plan
        self._keys = (key,) if isinstance(key, str) else tuple(key or ())
        if not all(isinstance(name, str) for name in self._keys) or len(set(self._keys)) < len(self._keys):
            raise ValueError(f"groupby({key!r}): it must be the name of a column, or a list of different ones")

    def aggregate(self, *aggs: AggregateFn) -> Dataset:
        """A row for each group: its keys, and a column for each aggregate."""
        from paceline.data.dataset import Dataset

        return Dataset(GroupBy(self._plan, self._keys, checked(aggs, self._keys)))

    def count(self) -> Dataset:
        """How many rows each group has, as `count()`."""
        return self.aggregate(Count())

    def sum(self, on: str | list[str] | None = None, ignore_nulls: bool = True) -> Dataset:
        """The sum of a column or several, as `sum(x)`; without `on`, of all that are no key."""
        return self.aggregate(*(Sum(name, ignore_nulls) for name in self._columns(on)))

    def min(self, on: str | list[str] | None = None, ignore_nulls: bool = True) -> Dataset:
        return self.aggregate(*(Min(name, ignore_nulls) for name in self._columns(on)))

    def max(self, on: str | list[str] | None = None, ignore_nulls: bool = True) -> Dataset:
        return self.aggregate(*(Max(name, ignore_nulls) for name in self._columns(on)))

    def mean(self, on: str | list[str] | None = None, ignore_nulls: bool = True) -> Dataset:
        return self.aggregate(*(Mean(name, ignore_nulls) for name in self._columns(on)))

    def std(self, on: str | list[str] | None = None, ddof: int = 1, ignore_nulls: bool = True) -> Dataset:
        return self.aggregate(*(Std(name, ddof, ignore_nulls) for name in self._columns(on)))

    def map_groups(
        self, fn: Callable[..., Any] | type, *, batch_format: BatchFormat = "numpy", **options: Any
    ) -> Dataset:
        """Call a function with each group as a batch; what it returns may have any number of rows.

        Everything else is as in `map_batches`: `fn_args`, `fn_kwargs`, `fn_constructor_args`, `num_cpus`,
        `concurrency` and so on. A group must fit in memory.
        """
        from paceline.data.dataset import Dataset

        if "batch_size" in options:
            raise TypeError("map_groups() has no batch_size: a batch is a group")
        grouped = GroupRows(self._plan, self._keys)
        # map_batches knows what a function may be; of its node only the transform is used, a group at a time.
        mapped = Dataset(grouped).map_batches(fn, batch_size=None, batch_format=batch_format, **options)._plan
        assert isinstance(mapped, Map), "map_batches makes a Map"
        return Dataset(Map(grouped, EachGroup(self._keys, mapped.transform)))

    def _columns(self, on: str | Iterable[str] | None) -> list[str]:
        if on is not None:
            return [on] if isinstance(on, str) else list(on)
        from paceline.data.dataset import Dataset

        return [name for name in Dataset(self._plan).columns() or () if name not in self._keys]


@dataclass(frozen=True)
class EachGroup(Transform):
    """A transform applied to each group by itself: to consecutive rows whose keys are equal, however they are cut."""

    keys: tuple[str, ...]
    transform: Transform

    @property
    def pool(self) -> Pool | None:
        return self.transform.pool

    @property
    def name(self) -> str:
        return self.transform.name.replace("map_batches", "map_groups")

    def apply(self, blocks: Iterator[Block], scope: Scope) -> Iterator[Block]:
        held: list[Block] = []
        size = 0
        for group in groups(blocks, Keys.ascending(self.keys)):
            for block in self.transform.apply(iter([group]), scope):
                if not block.num_rows:
                    continue
                if held and (size >= _OUTPUT_BYTES or held[-1].schema != block.schema):
                    yield Block.concat(held)
                    held, size = [], 0
                held.append(block)
                size += block.nbytes
        if held:
            yield Block.concat(held)


def groups(blocks: Iterator[Block], keys: Keys) -> Iterator[Block]:
    """Of rows that are ordered by keys, those of each group together."""
    held: list[Block] = []
    for block in blocks:
        if not block.num_rows:
            continue
        if held and keys.row(held[-1], held[-1].num_rows - 1) != keys.row(block, 0):
            yield Block.concat(held)
            held = []
        starts = [*keys.starts(block).tolist(), block.num_rows]
        for begin, stop in pairwise(starts):
            if held and begin:
                yield Block.concat(held)
                held = []
            held.append(block.slice(begin, stop))
    if held:
        yield Block.concat(held)
