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
    seed: int = 0
    every_epoch: bool = True
    num_blocks: int | None = None

    @property
    def name(self) -> str:
        return f"random_shuffle(seed={self.seed}{f', num_blocks={self.num_blocks}' if self.num_blocks else ''})"


@dataclass(frozen=True)
class Sort(_SingleInputBarrier):
    """Sorts rows by keys; nulls and NaN come last, and the sort is stable."""

    keys: tuple[str, ...]
    descending: tuple[bool, ...]
    boundaries: tuple[float, ...] | None = None
    """Values of the first key at which units begin."""

    @property
    def name(self) -> str:
        down = self.descending if len(set(self.descending)) > 1 else any(self.descending)
        bounds = "" if self.boundaries is None else f", boundaries={list(self.boundaries)}"
        return f"sort({_format_keys(self.keys)}{f', descending={down}' if down else ''}{bounds})"


@dataclass(frozen=True)
class GroupBy(_SingleInputBarrier):
    """Aggregates groups: one row per group with its keys and aggregates, sorted by the keys."""

    keys: tuple[str, ...]
    aggregates: tuple[AggregateFn, ...]
    num_partitions: int | None = None

    @property
    def name(self) -> str:
        return f"groupby({_format_groups(self)}).aggregate({', '.join(agg.name for agg in self.aggregates)})"


@dataclass(frozen=True)
class GroupRows(_SingleInputBarrier):
    """Sorts rows by keys and puts all rows of a group into one unit."""

    keys: tuple[str, ...]
    num_partitions: int | None = None

    @property
    def name(self) -> str:
        return f"groupby({_format_groups(self)})"


@dataclass(frozen=True)
class Repartition(_SingleInputBarrier):
    """Redistributes rows into a given number of units, or into units of a given number of rows."""

    num_blocks: int | None = None
    target_num_rows_per_block: int | None = None
    shuffle: bool = False
    seed: int = 0
    keys: tuple[str, ...] = ()
    """Rows with equal keys come to the same unit."""
    sort: bool = False
    """Whether to sort each unit by the keys."""

    def __post_init__(self) -> None:
        for name in ("num_blocks", "target_num_rows_per_block"):
            check_int(name, getattr(self, name), at_least=1, optional=True)
        if (self.num_blocks is None) == (self.target_num_rows_per_block is None):
            raise ValueError("repartition takes either num_blocks or target_num_rows_per_block")
        if self.keys and (self.num_blocks is None or self.shuffle):
            raise ValueError("repartition with keys takes num_blocks, and not shuffle")
        if self.sort and not self.keys:
            raise ValueError("repartition with sort=True takes keys, by which units are sorted")

    @property
    def name(self) -> str:
        size = self.num_blocks or f"target_num_rows_per_block={self.target_num_rows_per_block}"
        keys = f", keys={list(self.keys)}{', sort=True' if self.sort else ''}" if self.keys else ""
        return f"repartition({size}{', shuffle=True' if self.shuffle else ''}{keys})"


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


def _format_groups(node: GroupBy | GroupRows) -> str:
    return _format_keys(node.keys) + (f", num_partitions={node.num_partitions}" if node.num_partitions else "")


def _format_keys(keys: Sequence[str]) -> str:
    return repr(keys[0]) if len(keys) == 1 else repr(list(keys))
