"""From a plan to what can be run for an epoch, and what is known of it without running it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import xxhash

from paceline.data.barriers import RandomShuffle
from paceline.data.block import Schema
from paceline.data.exec.pipeline import Executor, Pipeline, lowered
from paceline.data.mixing import Mixing, mixing_of
from paceline.data.optimize import optimized
from paceline.data.plan import Barrier, Node, Reorder, walk
from paceline.data.source import Unit


def lowered_for(plan: Node, epoch: int, executor: Executor) -> Pipeline:
    """What is run for an epoch; rows that must be brought together first are, on the executor."""

    def resolve(barrier: Barrier, epoch: int) -> Sequence[Unit]:
        from paceline.data.exec.exchange import resolved

        return resolved(barrier, epoch, executor)

    return lowered(optimized(plan), epoch, resolve)


def outline(plan: Node) -> Pipeline:
    """The units that are read, in their order: as lowered, but with nothing brought together."""

    def resolve(barrier: Barrier, epoch: int) -> Sequence[Unit]:
        return [task.unit for part in barrier.inputs for task in lowered(part, epoch, resolve).tasks]

    return lowered(plan, 0, resolve)


@dataclass(frozen=True)
class Facts:
    """What is known of a dataset: told by its sources, or by its first rows."""

    plan: Node
    executor: Executor

    def fingerprint(self) -> str:
        """Of the units, and of all that puts rows into another order or takes some of them: seeds, keys, numbers."""
        moved = [
            (node.name, isinstance(node, Reorder | RandomShuffle) and node.every_epoch)
            for node in walk(self.plan)
            if isinstance(node, Barrier | Reorder)
        ]
        return xxhash.xxh3_64_hexdigest(repr((outline(self.plan).fingerprint, moved)).encode())

    def num_rows(self) -> int | None:
        from paceline.data.look import known_rows

        return known_rows(self.plan)

    def mixing(self) -> Mixing:
        return mixing_of(self.plan, [task.unit for task in outline(self.plan).tasks])

    def schema(self) -> Schema | None:
        from paceline.data.look import schema_of

        return schema_of(self.plan, self.executor)
