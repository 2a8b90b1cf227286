"""The nodes of a plan that need more than one unit at a time; `exec/exchange.py` has what becomes of each."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar

from paceline.data.block import Schema
from paceline.data.plan import Barrier, Map, Node
from paceline.data.source import Source, Unit

if TYPE_CHECKING:
    from paceline.data.expressions import Expr
    from paceline.data.groups import AggregateFn


@dataclass(frozen=True)
class _OfOne(Barrier):
    input: Node

    keeps_rows: ClassVar[bool] = False
    """The same rows in another order, or in other units: their number is that of the input."""

    @property
    def inputs(self) -> tuple[Node, ...]:
        return (self.input,)


@dataclass(frozen=True)
class RandomShuffle(_OfOne):
    """All rows in an order that is another one in every epoch."""

    keeps_rows = True
    seed: int = 0
    every_epoch: bool = True

    @property
    def name(self) -> str:
        return f"random_shuffle(seed={self.seed})"


@dataclass(frozen=True)
class Sort(_OfOne):
    """Rows by their keys; nulls and NaN last, and equal rows in the order they came in."""

    keeps_rows = True
    keys: tuple[str, ...]
    descending: tuple[bool, ...]

    @property
    def name(self) -> str:
        down = self.descending if len(set(self.descending)) > 1 else any(self.descending)
        return f"sort({_shown(self.keys)}{f', descending={down}' if down else ''})"


@dataclass(frozen=True)
class GroupBy(_OfOne):
    """A row for each group, with its keys and what the aggregates make of its rows; ordered by the keys."""

    keys: tuple[str, ...]
    aggregates: tuple[AggregateFn, ...]

    @property
    def name(self) -> str:
        return f"groupby({_shown(self.keys)}).aggregate({', '.join(agg.name for agg in self.aggregates)})"


@dataclass(frozen=True)
class GroupRows(_OfOne):
    """Rows ordered by their keys, all rows of a group in one unit."""

    keeps_rows = True
    keys: tuple[str, ...]

    @property
    def name(self) -> str:
        return f"groupby({_shown(self.keys)})"


@dataclass(frozen=True)
class Repartition(_OfOne):
    """The same rows in other units: so many of them, or of so many rows."""

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
    """Rows of several side by side."""

    parts: tuple[Node, ...]

    @property
    def inputs(self) -> tuple[Node, ...]:
        return self.parts

    @property
    def name(self) -> str:
        return "zip"


@dataclass(frozen=True)
class Sliced(_OfOne):
    """Rows `start` to `stop`, in the order of the epoch; `stop` None: to the end."""

    start: int = 0
    stop: int | None = None

    @property
    def name(self) -> str:
        return f"rows {self.start} to {'the end' if self.stop is None else self.stop}"


@dataclass(frozen=True)
class Limit(Sliced):
    """The first rows."""

    @property
    def name(self) -> str:
        return f"limit({self.stop})"


@dataclass(frozen=True)
class Materialize(_OfOne):
    """All rows are computed and kept, and read from there."""

    keeps_rows = True

    @property
    def name(self) -> str:
        return "materialize"


@dataclass(frozen=True)
class Ready:
    """A source of units that hold their rows already."""

    made_by: str
    made: tuple[Unit, ...]
    known_schema: Schema | None = None

    @property
    def name(self) -> str:
        return self.made_by

    def units(self) -> Sequence[Unit]:
        return self.made

    def schema(self) -> Schema | None:
        return self.known_schema

    def projected(self, columns: Sequence[str]) -> Source | None:
        return None

    def pruned(self, predicate: Expr) -> Source | None:
        return None


def limited(plan: Node, num_rows: int) -> Node:
    """The first rows of a plan, cut before transforms that give a row for each row: those need not see the others."""
    if isinstance(num_rows, bool) or not isinstance(num_rows, int) or num_rows < 0:
        raise ValueError(f"limit({num_rows!r}): it must be an integer of 0 or more")
    return _below_maps(plan, lambda node: Limit(node, 0, num_rows))


def sliced(plan: Node, start: int, stop: int | None = None) -> Node:
    """Rows `start` to `stop` of a plan, cut before transforms that give a row for each row."""
    if start < 0 or (stop is not None and stop < start):
        raise ValueError(f"rows {start} to {stop} are no range of rows")
    return _below_maps(plan, lambda node: Sliced(node, start, stop))


def _below_maps(plan: Node, cut: Callable[[Node], Node]) -> Node:
    if isinstance(plan, Map) and plan.transform.keeps_rows:
        return replace(plan, input=_below_maps(plan.input, cut))
    return cut(plan)


def _shown(keys: Sequence[str]) -> str:
    return repr(keys[0]) if len(keys) == 1 else repr(list(keys))
