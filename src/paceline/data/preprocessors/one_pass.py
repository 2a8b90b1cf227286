"""Preprocessors in the plan of a dataset: the pass over the rows that fits them, and the step that applies them.

A fit takes the statistics of each unit where its rows are and sends one state on, as data. The caller merges the states
in the order of the units.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgspec

from paceline.data.block import Block
from paceline.data.plan import Map
from paceline.data.pool import pool_for
from paceline.data.preprocessors.columns import check_columns
from paceline.data.preprocessors.statistics import State, Statistic, merged
from paceline.data.preprocessors.stored import as_json, from_json
from paceline.data.transforms.batches import batches
from paceline.data.transforms.calls import Call, Calls, UserTransform, rows_changed_by

if TYPE_CHECKING:
    from paceline.data.dataset import Dataset

_STATE = "state"


@dataclass(frozen=True)
class Together:
    """Several statistics as one."""

    statistics: tuple[Statistic, ...]
    who: str
    column: str = ""

    @property
    def __name__(self) -> str:
        return f"fit of {self.who}"

    def partial(self, block: Block) -> State:
        check_columns(block, (statistic.column for statistic in self.statistics), self.who)
        return [statistic.partial(block) for statistic in self.statistics]

    __call__ = partial

    def merge(self, one: State, other: State) -> State:
        return [statistic.merge(*pair) for statistic, *pair in zip(self.statistics, one, other, strict=True)]

    def finish(self, state: State) -> list[Any]:
        if state is None:
            raise ValueError(
                f"{self.who} cannot be fitted: the dataset has no rows\n\n"
                "hint: ds.count() and ds.explain() show what is read"
            )
        return [statistic.finish(part) for statistic, part in zip(self.statistics, state, strict=True)]


@dataclass(frozen=True)
class Fit(UserTransform):
    """The rows of a unit become one row, which holds the state of the statistics."""

    @property
    def name(self) -> str:
        return self.call.name

    def run(self, blocks: Iterator[Block], calls: Calls) -> Iterator[Block]:
        whole = merged(self.call.fn, _called(blocks, calls))
        if whole is not None:
            yield Block({_STATE: [encoded(whole)]})


@dataclass(frozen=True)
class Apply(UserTransform):
    """Blocks through a preprocessor."""

    batch_size: int | None = None
    one_to_one: bool = True

    @property
    def name(self) -> str:
        return self.call.name

    @property
    def keeps_rows(self) -> bool:
        return self.one_to_one

    def run(self, blocks: Iterator[Block], calls: Calls) -> Iterator[Block]:
        return _called(blocks, calls, self.batch_size)


@dataclass(frozen=True)
class Named:
    """A function of blocks, as `explain()` and errors call it."""

    name: str
    function: Callable[[Block], Block]

    @property
    def __name__(self) -> str:
        return self.name

    def __call__(self, block: Block) -> Block:
        return self.function(block)


def applied(
    ds: Dataset,
    function: Named,
    *,
    one_to_one: bool = True,
    batch_size: int | None = None,
    num_cpus: float | None = None,
    concurrency: int | None = None,
) -> Dataset:
    """The dataset with one more step."""
    from paceline.data.dataset import Dataset

    pool = pool_for(function, compute=None, concurrency=concurrency, num_cpus=num_cpus, num_gpus=None)
    if batch_size is not None and (not isinstance(batch_size, int) or batch_size < 1):
        raise ValueError(f"batch_size={batch_size!r} must be an integer of at least 1, or None")
    call = Call(function, pool=pool, after=rows_changed_by(ds._plan))
    return Dataset(Map(ds._plan, Apply(call, batch_size, one_to_one)))


def computed(ds: Dataset, statistics: Sequence[Statistic], who: str) -> list[Any]:
    """What each statistic comes to for all rows, which are read once."""
    from paceline.data.dataset import Dataset

    together = Together(tuple(statistics), who)
    columns = list(dict.fromkeys(statistic.column for statistic in statistics))
    plan = ds.select_columns(columns)._plan
    fitting = Dataset(Map(plan, Fit(Call(together, after=rows_changed_by(plan)))))
    parts = fitting.iter_batches(batch_size=None, batch_format="pyarrow", prefetch_batches=0)
    states = (decoded(data) for part in parts for data in part[_STATE].to_pylist())
    return together.finish(merged(together, states))


def encoded(state: State) -> bytes:
    return msgspec.msgpack.encode(as_json(state))


def decoded(data: bytes) -> State:
    return from_json(msgspec.msgpack.decode(data))


def _called(blocks: Iterable[Block], calls: Calls, batch_size: int | None = None) -> Iterator[Any]:
    def once(block: Block) -> Iterator[Any]:
        yield calls.fn(block)

    for first, block in batches(blocks, batch_size):
        yield from calls.over_batch(block, first, once)
