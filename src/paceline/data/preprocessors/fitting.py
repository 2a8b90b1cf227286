"""Preprocessors in the plan of a dataset: the pass that fits them, and the step that applies them.

A fit computes the statistics of each unit where its rows are, and sends one state per unit, as data. The caller merges
the states in unit order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgspec

from paceline._core.arguments import check_int
from paceline.data.block import Block
from paceline.data.planning.plan import Map, last_row_change
from paceline.data.planning.pool import resolve_pool
from paceline.data.preprocessors.columns import check_columns
from paceline.data.preprocessors.json_values import from_json_value, to_json_value
from paceline.data.preprocessors.statistics import State, Statistic, merge_states
from paceline.data.transforms.batches import split_batches
from paceline.data.transforms.user_calls import UnitCalls, UserCall, UserTransform

if TYPE_CHECKING:
    from paceline.data.dataset import Dataset

_STATE = "state"


@dataclass(frozen=True)
class CombinedStatistic:
    """Combines several statistics into one."""

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
                "hint: ds.count() and ds.explain() show what the dataset reads"
            )
        return [statistic.finish(part) for statistic, part in zip(self.statistics, state, strict=True)]


@dataclass(frozen=True)
class FitTransform(UserTransform):
    """Reduces the rows of a unit to one row that holds the state of the statistics."""

    @property
    def name(self) -> str:
        return self.call.name

    def run(self, blocks: Iterator[Block], calls: UnitCalls) -> Iterator[Block]:
        state = merge_states(self.call.fn, _call_on_blocks(blocks, calls))
        if state is not None:
            yield Block({_STATE: [encode_state(state)]})


@dataclass(frozen=True)
class PreprocessorTransform(UserTransform):
    """Applies a preprocessor to blocks."""

    batch_size: int | None = None
    one_to_one: bool = True

    @property
    def name(self) -> str:
        return self.call.name

    @property
    def keeps_rows(self) -> bool:
        return self.one_to_one

    def run(self, blocks: Iterator[Block], calls: UnitCalls) -> Iterator[Block]:
        return _call_on_blocks(blocks, calls, self.batch_size)


@dataclass(frozen=True)
class NamedBlockFunction:
    """A block function with the name that `explain()` and errors show."""

    name: str
    function: Callable[[Block], Block]

    @property
    def __name__(self) -> str:
        return self.name

    def __call__(self, block: Block) -> Block:
        return self.function(block)


def apply_function(
    ds: Dataset,
    function: NamedBlockFunction,
    *,
    one_to_one: bool = True,
    batch_size: int | None = None,
    num_cpus: float | None = None,
    concurrency: int | None = None,
) -> Dataset:
    """Return the dataset with one more step."""
    from paceline.data.dataset import Dataset

    pool = resolve_pool(function, compute=None, concurrency=concurrency, num_cpus=num_cpus, num_gpus=None)
    check_int("batch_size", batch_size, at_least=1, optional=True)
    call = UserCall(function, pool=pool, counted_after=last_row_change(ds._plan))
    return Dataset(Map(ds._plan, PreprocessorTransform(call, batch_size, one_to_one)))


def compute_statistics(ds: Dataset, statistics: Sequence[Statistic], who: str) -> list[Any]:
    """Compute each statistic over all rows, in one pass."""
    from paceline.data.dataset import Dataset

    combined = CombinedStatistic(tuple(statistics), who)
    columns = list(dict.fromkeys(statistic.column for statistic in statistics))
    plan = ds.select_columns(columns)._plan
    fitting = Dataset(Map(plan, FitTransform(UserCall(combined, counted_after=last_row_change(plan)))))
    parts = fitting.iter_batches(batch_size=None, batch_format="pyarrow", prefetch_batches=0)
    states = (decode_state(data) for part in parts for data in part[_STATE].to_pylist())
    return combined.finish(merge_states(combined, states))


def encode_state(state: State) -> bytes:
    return msgspec.msgpack.encode(to_json_value(state))


def decode_state(data: bytes) -> State:
    return from_json_value(msgspec.msgpack.decode(data))


def _call_on_blocks(blocks: Iterable[Block], calls: UnitCalls, batch_size: int | None = None) -> Iterator[Any]:
    def call_once(block: Block) -> Iterator[Any]:
        yield calls.fn(block)

    for first, block in split_batches(blocks, batch_size):
        yield from calls.call_batch(block, first, call_once)
