"""The logical plan of a dataset: frozen nodes with their inputs, and the interfaces of what they hold.

A source lists units. A unit is what one process reads at a time, such as some row groups of a file. Units are small and
picklable, and a source returns the same units in the same order every time.

A transform takes the blocks of one unit and yields blocks. It knows no other unit, so units can run anywhere, in any
order, and can be retried. Nothing here executes or reads.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

import msgspec

from paceline.data.block import Block, Schema

if TYPE_CHECKING:
    from paceline.data.expressions import Expr


class Unit(Protocol):
    @property
    def name(self) -> str:
        """The name in messages: `part-3.parquet`, `part-3.parquet (row groups 4 to 7)`."""

    @property
    def num_rows(self) -> int | None:
        """Number of rows; None if unknown before reading."""

    @property
    def num_bytes(self) -> int | None:
        """Approximate size in memory; None if unknown."""

    def read(self) -> Iterator[Block]: ...


class Source(Protocol):
    @property
    def name(self) -> str:
        """The call as the user wrote it: `read_parquet('train/')`."""

    def units(self) -> Sequence[Unit]: ...

    def schema(self) -> Schema | None:
        """Return the schema without reading rows; None if that is impossible."""

    def project_columns(self, columns: Sequence[str]) -> Source | None:
        """Return a source that reads only these columns; None if that saves nothing."""

    def prune_units(self, predicate: Expr) -> Source | None:
        """Return a source without units that contain no matching row; None if that cannot be determined.

        The caller still filters the remaining rows.
        """


class PlainSource:
    """Base of sources: no schema in advance, and neither columns nor units can be left out."""

    def schema(self) -> Schema | None:
        return None

    def project_columns(self, columns: Sequence[str]) -> Source | None:
        return None

    def prune_units(self, predicate: Expr) -> Source | None:
        return None


@dataclass(frozen=True)
class PoolSpec:
    """Dedicated processes for a transform: between `min_size` and `max_size` of them."""

    min_size: int = 1
    max_size: int = 1
    num_cpus: float = 1.0
    num_gpus: float = 0.0


class SkippedRows(msgspec.Struct, frozen=True):
    """Rows that a user's function failed on, with `on_error="skip"`."""

    unit: str
    row: int
    """The first of them, counted from the start of the unit."""
    num_rows: int
    error: str


@dataclass
class TransformScope:
    """State shared by the transforms of one process: instances of the user's classes, and the current unit."""

    unit: str = ""
    number: int = 0
    """The current unit's number in the order of the epoch."""
    skipped: list[SkippedRows] = field(default_factory=list)
    _created: dict[object, tuple[Any, Any]] = field(default_factory=dict)

    def get_or_create(self, owner: Any, make: Callable[[], Any]) -> Any:
        """Return the object of a transform or a user's function, by its `key`."""
        if owner.key not in self._created:
            # Keep the owner alive too: its key may be its address, which could be reused by another transform.
            self._created[owner.key] = owner, make()
        return self._created[owner.key][1]


@dataclass(frozen=True)
class Transform:
    label: ClassVar[str] = ""
    """A template of the name: `limit({0.limit})`."""

    @property
    def name(self) -> str:
        """The name in `explain()` and `stats()`: `map_batches(normalize)`."""
        return self.label.format(self)

    @property
    def pool(self) -> PoolSpec | None:
        """None means in whatever process the rows are."""
        return None

    @property
    def keeps_rows(self) -> bool:
        """Whether each input row gives one output row, in the same order."""
        return False

    @property
    def depends_on_row_number(self) -> bool:
        """Whether a result depends on the row's number in its unit: no row before it may be left out."""
        return False

    def bind_places(self, epoch: int, unit_numbers: Mapping[str, int]) -> Transform:
        """Return the transform for an epoch and its units in order. Called if results depend on row numbers."""
        raise NotImplementedError

    @property
    def key(self) -> object:
        """Equal for all copies of a transform that share its object."""
        return id(self)

    def apply(self, blocks: Iterator[Block], scope: TransformScope) -> Iterator[Block]:
        raise NotImplementedError


@dataclass(frozen=True)
class PlanNode:
    label: ClassVar[str] = ""

    @property
    def inputs(self) -> tuple[PlanNode, ...]:
        """What the node reads: its field `parts`, or its single `input`."""
        if hasattr(self, "parts"):
            return tuple(self.parts)
        return (self.input,) if hasattr(self, "input") else ()

    @property
    def name(self) -> str:
        return self.label.format(self)


@dataclass(frozen=True)
class Read(PlanNode):
    label = "{0.source.name}"
    source: Source


@dataclass(frozen=True)
class Map(PlanNode):
    """Applies a transform to each unit independently."""

    label = "{0.transform.name}"
    input: PlanNode
    transform: Transform


@dataclass(frozen=True)
class ReorderUnits(PlanNode):
    """Shuffles units, differently in every epoch or the same in all."""

    label = "randomize_block_order(seed={0.seed})"
    input: PlanNode
    seed: int
    every_epoch: bool = True


@dataclass(frozen=True)
class Union(PlanNode):
    label = "union"
    parts: tuple[PlanNode, ...]


@dataclass(frozen=True)
class Barrier(PlanNode):
    """A node that cannot run one unit at a time; `exec/exchange.py` implements each kind.

    All input rows are first brought together, in memory or spilled to disk, and divided into new units.
    """


def walk(node: PlanNode) -> Iterator[PlanNode]:
    """Yield all nodes, inputs first."""
    for part in node.inputs:
        yield from walk(part)
    yield node


def last_row_change(plan: PlanNode) -> str | None:
    """The last step of a plan after which a row's number is no longer its number in the unit."""
    match plan:
        case Map(input=below, transform=transform):
            return last_row_change(below) if transform.keeps_rows else transform.name
        case ReorderUnits(input=below):
            return last_row_change(below)
        case Union(parts=parts):
            return next((name for name in map(last_row_change, parts) if name), None)
    return None
