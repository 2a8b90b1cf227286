"""Statistics of a dataset, all in one pass: partial states where the rows are, merged by who asked."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgspec

from paceline.data.block import Block
from paceline.data.preprocessors.columns import check_columns
from paceline.data.preprocessors.statistics import State, Statistic, merged
from paceline.data.preprocessors.stored import as_json, from_json

if TYPE_CHECKING:
    from paceline.data.dataset import Dataset

_STATE = "state"


@dataclass(frozen=True)
class Together:
    """Several statistics as one."""

    statistics: tuple[Statistic, ...]
    column: str = ""

    def partial(self, block: Block) -> State:
        return [statistic.partial(block) for statistic in self.statistics]

    def merge(self, one: State, other: State) -> State:
        return [statistic.merge(*pair) for statistic, *pair in zip(self.statistics, one, other, strict=True)]

    def finish(self, state: State) -> list[Any]:
        return [statistic.finish(part) for statistic, part in zip(self.statistics, state, strict=True)]


@dataclass(frozen=True)
class Partial:
    """Turns a batch into one row that holds the states of all statistics."""

    statistics: Together
    who: str

    @property
    def __name__(self) -> str:
        return f"fit of {self.who}"

    def __call__(self, batch: Any) -> dict[str, list[bytes]]:
        block = Block.from_batch(batch)
        if not block.num_rows:
            return {_STATE: []}
        check_columns(block, (statistic.column for statistic in self.statistics.statistics), self.who)
        return {_STATE: [encoded(self.statistics.partial(block))]}


def encoded(state: State) -> bytes:
    return msgspec.msgpack.encode(as_json(state))


def decoded(data: bytes) -> State:
    return from_json(msgspec.msgpack.decode(data))


def computed(ds: Dataset, statistics: Sequence[Statistic], who: str) -> list[Any]:
    """What each statistic comes to for all rows."""
    together = Together(tuple(statistics))
    columns = list(dict.fromkeys(statistic.column for statistic in statistics))
    partials = ds.select_columns(columns).map_batches(Partial(together, who), batch_size=None, batch_format="pyarrow")
    return finished(together, (decoded(row[_STATE]) for row in partials.iter_rows()), who)


def finished(together: Together, states: Iterable[State], who: str) -> list[Any]:
    """From the states of all parts, in the order of the rows."""
    whole = merged(together, states)
    if whole is None:
        raise ValueError(
            f"{who} cannot be fitted: the dataset has no rows\n\nhint: ds.count() and ds.explain() show what is read"
        )
    return together.finish(whole)
