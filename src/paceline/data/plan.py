"""The logical plan of a dataset: frozen nodes with their inputs. Nothing here executes or reads."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from paceline.data.source import Source
from paceline.data.transform import Transform


@dataclass(frozen=True)
class PlanNode:
    @property
    def inputs(self) -> tuple[PlanNode, ...]:
        return ()

    @property
    def name(self) -> str:
        raise NotImplementedError


@dataclass(frozen=True)
class Read(PlanNode):
    source: Source

    @property
    def name(self) -> str:
        return self.source.name


@dataclass(frozen=True)
class Map(PlanNode):
    """Applies a transform to each unit independently."""

    input: PlanNode
    transform: Transform

    @property
    def inputs(self) -> tuple[PlanNode, ...]:
        return (self.input,)

    @property
    def name(self) -> str:
        return self.transform.name


@dataclass(frozen=True)
class ReorderUnits(PlanNode):
    """Shuffles units, differently in every epoch or the same in all."""

    input: PlanNode
    seed: int
    every_epoch: bool = True

    @property
    def inputs(self) -> tuple[PlanNode, ...]:
        return (self.input,)

    @property
    def name(self) -> str:
        return f"randomize_block_order(seed={self.seed})"


@dataclass(frozen=True)
class Union(PlanNode):
    """Concatenates the rows of its inputs."""

    parts: tuple[PlanNode, ...]

    @property
    def inputs(self) -> tuple[PlanNode, ...]:
        return self.parts

    @property
    def name(self) -> str:
        return "union"


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
