"""Plan nodes that need more than one unit at a time. `exec/exchange.py` runs them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from paceline._core.arguments import check_int
from paceline.data.block import Schema
from paceline.data.planning.joins import JoinSpec
from paceline.data.planning.mix_pattern import MixStoppingCondition
from paceline.data.planning.plan import Barrier, PlainSource, PlanNode, Unit

if TYPE_CHECKING:
    from paceline.data.planning.group_aggregation import AggregateFn


@dataclass(frozen=True)
class _SingleInputBarrier(Barrier):
    input: PlanNode


@dataclass(frozen=True)
class RandomShuffle(_SingleInputBarrier):
    label = "random_shuffle(seed={0.seed})"
    seed: int = 0
    every_epoch: bool = True


@dataclass(frozen=True)
class Sort(_SingleInputBarrier):
    """Sorts rows by keys; nulls and NaN come last, and the sort is stable."""

    keys: tuple[str, ...]
    descending: tuple[bool, ...]

    @property
    def name(self) -> str:
        down = self.descending if len(set(self.descending)) > 1 else any(self.descending)
        return f"sort({_format_keys(self.keys)}{f', descending={down}' if down else ''})"


@dataclass(frozen=True)
class GroupBy(_SingleInputBarrier):
    """Aggregates groups: one row per group with its keys and aggregates, sorted by the keys."""

    keys: tuple[str, ...]
    aggregates: tuple[AggregateFn, ...]

    @property
    def name(self) -> str:
        return f"groupby({_format_keys(self.keys)}).aggregate({', '.join(agg.name for agg in self.aggregates)})"


@dataclass(frozen=True)
class GroupRows(_SingleInputBarrier):
    """Sorts rows by keys and puts all rows of a group into one unit."""

    keys: tuple[str, ...]

    @property
    def name(self) -> str:
        return f"groupby({_format_keys(self.keys)})"


@dataclass(frozen=True)
class Repartition(_SingleInputBarrier):
    """Redistributes rows into a given number of units, or into units of a given number of rows."""

    num_blocks: int | None = None
    target_num_rows_per_block: int | None = None
    shuffle: bool = False
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("num_blocks", "target_num_rows_per_block"):
            check_int(name, getattr(self, name), at_least=1, optional=True)
        if (self.num_blocks is None) == (self.target_num_rows_per_block is None):
            raise ValueError("repartition takes either num_blocks or target_num_rows_per_block")

    @property
    def name(self) -> str:
        size = self.num_blocks or f"target_num_rows_per_block={self.target_num_rows_per_block}"
        return f"repartition({size}{', shuffle=True' if self.shuffle else ''})"


@dataclass(frozen=True)
class Zip(Barrier):
    label = "zip"
    parts: tuple[PlanNode, ...]


@dataclass(frozen=True)
class Join(Barrier):
    """Pairs the rows of two datasets with equal keys."""

    parts: tuple[PlanNode, PlanNode]
    spec: JoinSpec
    num_partitions: int | None = None

    @property
    def name(self) -> str:
        return f"join({self.spec}{f', num_partitions={self.num_partitions}' if self.num_partitions else ''})"


@dataclass(frozen=True)
class Mix(Barrier):
    """Lets the rows of several datasets alternate. Nothing is stored of datasets whose row counts are known."""

    parts: tuple[PlanNode, ...]
    ratio: tuple[int, ...]
    stop: MixStoppingCondition

    @property
    def name(self) -> str:
        return f"mix({':'.join(map(str, self.ratio))}, {self.stop.value})"


@dataclass(frozen=True)
class SliceRows(_SingleInputBarrier):
    """Keeps rows `start` to `stop`, in epoch order. `stop=None` means to the end."""

    start: int = 0
    stop: int | None = None

    @property
    def name(self) -> str:
        return f"rows {self.start} to {'the end' if self.stop is None else self.stop}"


@dataclass(frozen=True)
class Limit(SliceRows):
    @property
    def name(self) -> str:
        return f"limit({self.stop})"


@dataclass(frozen=True)
class Materialize(_SingleInputBarrier):
    label = "materialize"


@dataclass(frozen=True)
class PreparedSource(PlainSource):
    """A source whose units already hold their rows."""

    name: str
    prepared_units: tuple[Unit, ...]
    known_schema: Schema | None = None

    def units(self) -> Sequence[Unit]:
        return self.prepared_units

    def schema(self) -> Schema | None:
        return self.known_schema


def _format_keys(keys: Sequence[str]) -> str:
    return repr(keys[0]) if len(keys) == 1 else repr(list(keys))
