"""Plan nodes that need more than one unit at a time. `exec/exchange.py` runs them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar

from paceline.data.block import Schema
from paceline.data.plan import Barrier, Map, PlanNode
from paceline.data.source import Source, Unit

if TYPE_CHECKING:
    from paceline.data.expressions import Expr
    from paceline.data.group_aggregation import AggregateFn


@dataclass(frozen=True)
class _SingleInputBarrier(Barrier):
    input: PlanNode

    keeps_rows: ClassVar[bool] = False
    """True if the rows are only reordered or regrouped into other units: their number is that of the input."""

    @property
    def inputs(self) -> tuple[PlanNode, ...]:
        return (self.input,)


@dataclass(frozen=True)
class RandomShuffle(_SingleInputBarrier):
    """Shuffles all rows, differently in every epoch."""

    keeps_rows = True
    seed: int = 0
    every_epoch: bool = True

    @property
    def name(self) -> str:
        return f"random_shuffle(seed={self.seed})"


@dataclass(frozen=True)
class Sort(_SingleInputBarrier):
    """Sorts rows by keys; nulls and NaN come last, and the sort is stable."""

    keeps_rows = True
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

    keeps_rows = True
    keys: tuple[str, ...]

    @property
    def name(self) -> str:
        return f"groupby({_format_keys(self.keys)})"


@dataclass(frozen=True)
class Repartition(_SingleInputBarrier):
    """Redistributes rows into a given number of units, or into units of a given number of rows."""

    keeps_rows = True
    num_blocks: int | None = None
    target_num_rows_per_block: int | None = None
    shuffle: bool = False
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("num_blocks", "target_num_rows_per_block"):
            value = getattr(self, name)
            if value is not None and (not isinstance(value, int) or isinstance(value, bool) or value < 1):
                raise ValueError(f"repartition({name}={value!r}): it must be an integer of 1 or more")
        if (self.num_blocks is None) == (self.target_num_rows_per_block is None):
            raise ValueError(
                f"repartition(num_blocks={self.num_blocks}, "
                f"target_num_rows_per_block={self.target_num_rows_per_block}): exactly one of the two must be given"
            )

    @property
    def name(self) -> str:
        size = self.num_blocks or f"target_num_rows_per_block={self.target_num_rows_per_block}"
        return f"repartition({size}{', shuffle=True' if self.shuffle else ''})"


@dataclass(frozen=True)
class Zip(Barrier):
    """Combines several inputs column-wise, row by row."""

    parts: tuple[PlanNode, ...]

    @property
    def inputs(self) -> tuple[PlanNode, ...]:
        return self.parts

    @property
    def name(self) -> str:
        return "zip"


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
    """Keeps the first rows."""

    @property
    def name(self) -> str:
        return f"limit({self.stop})"


@dataclass(frozen=True)
class Materialize(_SingleInputBarrier):
    """Computes all rows once and keeps them."""

    keeps_rows = True

    @property
    def name(self) -> str:
        return "materialize"


@dataclass(frozen=True)
class PreparedSource:
    """A source whose units already hold their rows."""

    label: str
    prepared_units: tuple[Unit, ...]
    known_schema: Schema | None = None

    @property
    def name(self) -> str:
        return self.label

    def units(self) -> Sequence[Unit]:
        return self.prepared_units

    def schema(self) -> Schema | None:
        return self.known_schema

    def project_columns(self, columns: Sequence[str]) -> Source | None:
        return None

    def prune_units(self, predicate: Expr) -> Source | None:
        return None


def limit_plan(plan: PlanNode, num_rows: int) -> PlanNode:
    """Limit a plan before transforms that keep rows one-to-one, so that these process only the limited rows."""
    if isinstance(num_rows, bool) or not isinstance(num_rows, int) or num_rows < 0:
        raise ValueError(f"limit({num_rows!r}): it must be an integer of 0 or more")
    return _push_below_maps(plan, lambda node: Limit(node, 0, num_rows))


def slice_plan(plan: PlanNode, start: int, stop: int | None = None) -> PlanNode:
    """Slice a plan before transforms that keep rows one-to-one."""
    if start < 0 or (stop is not None and stop < start):
        raise ValueError(f"rows {start} to {stop} are no range of rows")
    return _push_below_maps(plan, lambda node: SliceRows(node, start, stop))


def _push_below_maps(plan: PlanNode, cut: Callable[[PlanNode], PlanNode]) -> PlanNode:
    if isinstance(plan, Map) and plan.transform.keeps_rows:
        return replace(plan, input=_push_below_maps(plan.input, cut))
    return cut(plan)


def _format_keys(keys: Sequence[str]) -> str:
    return repr(keys[0]) if len(keys) == 1 else repr(list(keys))
