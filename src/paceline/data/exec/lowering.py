"""Lowers a plan to the pipeline of an epoch, and finds what is known about it without running it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import xxhash

from paceline.data.barriers import RandomShuffle
from paceline.data.block import Schema
from paceline.data.exec.pipeline import Executor, Pipeline, lower_plan
from paceline.data.optimizer import optimize_plan
from paceline.data.plan import Barrier, PlanNode, ReorderUnits, walk
from paceline.data.shuffle_mixing import Mixing, compute_mixing
from paceline.data.source import Unit


def lower_epoch(plan: PlanNode, epoch: int, executor: Executor) -> Pipeline:
    """The pipeline of an epoch. Barriers are resolved on the executor."""

    def resolve(barrier: Barrier, epoch: int) -> Sequence[Unit]:
        from paceline.data.exec.exchange import resolve_barrier

        return resolve_barrier(barrier, epoch, executor)

    return lower_plan(optimize_plan(plan), epoch, resolve)


def outline_plan(plan: PlanNode) -> Pipeline:
    """The units to read, in order: as lowered, but with no barrier resolved."""

    def resolve(barrier: Barrier, epoch: int) -> Sequence[Unit]:
        return [task.unit for part in barrier.inputs for task in lower_plan(part, epoch, resolve).tasks]

    return lower_plan(plan, 0, resolve)


@dataclass(frozen=True)
class DatasetFacts:
    """What is known about a dataset, from its sources or from its first rows."""

    plan: PlanNode
    executor: Executor

    def fingerprint(self) -> str:
        """Identifies the units and everything that reorders or selects rows: seeds, keys, numbers."""
        moved = [
            (node.name, isinstance(node, ReorderUnits | RandomShuffle) and node.every_epoch)
            for node in walk(self.plan)
            if isinstance(node, Barrier | ReorderUnits)
        ]
        return xxhash.xxh3_64_hexdigest(repr((outline_plan(self.plan).fingerprint, moved)).encode())

    def num_rows(self) -> int | None:
        from paceline.data.plan_queries import known_num_rows

        return known_num_rows(self.plan)

    def mixing(self) -> Mixing:
        return compute_mixing(self.plan, [task.unit for task in outline_plan(self.plan).tasks])

    def schema(self) -> Schema | None:
        from paceline.data.plan_queries import find_schema

        return find_schema(self.plan, self.executor)
