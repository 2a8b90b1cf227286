"""The logical plan of a dataset: frozen nodes, each with its inputs. Nothing here runs or reads anything."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from paceline.data.source import Source
from paceline.data.transform import Transform


@dataclass(frozen=True)
class Node:
    @property
    def inputs(self) -> tuple[Node, ...]:
        return ()

    @property
    def name(self) -> str:
        raise NotImplementedError


@dataclass(frozen=True)
class Read(Node):
    source: Source

    @property
    def name(self) -> str:
        return self.source.name


@dataclass(frozen=True)
class Map(Node):
    """Rows go through a transform, each unit by itself."""

    input: Node
    transform: Transform

    @property
    def inputs(self) -> tuple[Node, ...]:
        return (self.input,)

    @property
    def name(self) -> str:
        return self.transform.name


@dataclass(frozen=True)
class Reorder(Node):
    """Units change places: in another order in every epoch, or the same in all."""

    input: Node
    seed: int
    every_epoch: bool = True

    @property
    def inputs(self) -> tuple[Node, ...]:
        return (self.input,)

    @property
    def name(self) -> str:
        return f"randomize_block_order(seed={self.seed})"


@dataclass(frozen=True)
class Union(Node):
    """The rows of one after those of another."""

    parts: tuple[Node, ...]

    @property
    def inputs(self) -> tuple[Node, ...]:
        return self.parts

    @property
    def name(self) -> str:
        return "union"


@dataclass(frozen=True)
class Barrier(Node):
    """What cannot be done a unit at a time; `exec/exchange.py` has what each kind does.

    All rows of the inputs are brought together first, in memory or beside it, and new units are made of them.
    """


def walk(node: Node) -> Iterator[Node]:
    """All nodes, inputs first."""
    for part in node.inputs:
        yield from walk(part)
    yield node
