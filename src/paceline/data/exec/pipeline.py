"""Lowers a plan to a pipeline: tasks in order, and the chains of stages they go through."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Protocol

import xxhash

from paceline.data.plan import Barrier, Map, PlanNode, Read, ReorderUnits, Union
from paceline.data.sharding import RowDelivery
from paceline.data.shuffle_order import permutation
from paceline.data.source import Unit
from paceline.data.transform import PoolSpec, Transform


@dataclass(frozen=True)
class PipelineStage:
    """Transforms that run in one process, one after another."""

    transforms: tuple[Transform, ...]
    pool: PoolSpec | None = None
    """The stage's own processes; None for the first stage, which runs where the unit is read."""

    @property
    def name(self) -> str:
        return " -> ".join(transform.name for transform in self.transforms)


@dataclass(frozen=True)
class PipelineTask:
    unit: Unit
    chain: int
    """Index of the pipeline's chain that its rows go through."""


@dataclass(frozen=True)
class Pipeline:
    """Tasks in the order of an epoch. All rows of a task come before those of the next."""

    tasks: tuple[PipelineTask, ...]
    chains: tuple[tuple[Transform, ...], ...]

    def stages(self, chain: int) -> tuple[PipelineStage, ...]:
        """A chain, cut before each transform that has its own processes."""
        found: list[PipelineStage] = [PipelineStage(())]
        for own, group in groupby(self.chains[chain], key=lambda transform: transform.pool is not None):
            transforms = tuple(group)
            if own:
                found += [PipelineStage((transform,), transform.pool) for transform in transforms]
            else:
                found[-1] = replace(found[-1], transforms=found[-1].transforms + transforms)
        return tuple(found)

    @property
    def num_rows(self) -> int | None:
        """The number of rows, if it is known in advance."""
        numbers = [
            task.unit.num_rows if all(t.keeps_rows for t in self.chains[task.chain]) else None for task in self.tasks
        ]
        return None if None in numbers else sum(number or 0 for number in numbers)

    @property
    def fingerprint(self) -> str:
        """Identifies a dataset by its units and their order, not by its transforms."""
        units = [(task.unit.name, _unit_size(task.unit)) for task in self.tasks]
        return xxhash.xxh3_64_hexdigest(repr(units).encode())


class Executor(Protocol):
    """Runs pipelines, in this process or in others."""

    def run(self, pipeline: Pipeline, unit: int = 0, offset: int = 0) -> Iterator[RowDelivery]:
        """Yield the rows in order, from row `offset` of task `unit`'s output on. Closing the iterator stops work."""
        ...


ResolveBarrier = Callable[[Barrier, int], Sequence[Unit]]
"""Resolves a barrier for an epoch; the returned units own the stored rows."""


def lower_plan(plan: PlanNode, epoch: int, resolve: ResolveBarrier) -> Pipeline:
    """Lower a plan for one epoch. Barriers are resolved on the way, inputs first."""
    match plan:
        case Read(source=source):
            return Pipeline(tuple(PipelineTask(unit, 0) for unit in source.units()), ((),))
        case Barrier():
            return Pipeline(tuple(PipelineTask(unit, 0) for unit in resolve(plan, epoch)), ((),))
        case Map(input=part, transform=transform):
            below = lower_plan(part, epoch, resolve)
            return replace(below, chains=tuple((*chain, transform) for chain in below.chains))
        case ReorderUnits(input=part, seed=seed, every_epoch=every_epoch):
            below = lower_plan(part, epoch, resolve)
            order = permutation(len(below.tasks), seed, epoch if every_epoch else 0)
            return replace(below, tasks=tuple(below.tasks[index] for index in order))
        case Union(parts=parts):
            return _join_pipelines([lower_plan(part, epoch, resolve) for part in parts])
    raise TypeError(f"{type(plan).__name__} is no node that can be run")


def _unit_size(unit: Unit) -> int:
    """In rows, or in bytes if the number of rows is unknown: a changed file has a different size."""
    return unit.num_rows if unit.num_rows is not None else unit.num_bytes or 0


def _join_pipelines(pipelines: Sequence[Pipeline]) -> Pipeline:
    tasks: list[PipelineTask] = []
    chains: list[tuple[Transform, ...]] = []
    for pipeline in pipelines:
        tasks += [replace(task, chain=task.chain + len(chains)) for task in pipeline.tasks]
        chains += pipeline.chains
    return Pipeline(tuple(tasks), tuple(chains))
