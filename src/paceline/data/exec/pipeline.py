"""From a plan to what is run: tasks in order, and the chains of stages that they go through."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Protocol

import xxhash

from paceline.data.order import permutation
from paceline.data.plan import Barrier, Map, Node, Read, Reorder, Union
from paceline.data.position import Delivered
from paceline.data.source import Unit
from paceline.data.transform import Pool, Transform


@dataclass(frozen=True)
class Stage:
    """Transforms that run in one process, one after the other."""

    transforms: tuple[Transform, ...]
    pool: Pool | None = None
    """Processes of its own; None for the first stage, which runs where the unit is read."""

    @property
    def name(self) -> str:
        return " -> ".join(transform.name for transform in self.transforms)


@dataclass(frozen=True)
class Task:
    unit: Unit
    chain: int
    """Which of the pipeline's chains its rows go through."""


@dataclass(frozen=True)
class Pipeline:
    """Tasks in the order of an epoch. The rows of one come before those of the next."""

    tasks: tuple[Task, ...]
    chains: tuple[tuple[Transform, ...], ...]

    def stages(self, chain: int) -> tuple[Stage, ...]:
        """A chain, cut where a transform has processes of its own."""
        found: list[Stage] = [Stage(())]
        for own, group in groupby(self.chains[chain], key=lambda transform: transform.pool is not None):
            transforms = tuple(group)
            if own:
                found += [Stage((transform,), transform.pool) for transform in transforms]
            else:
                found[-1] = replace(found[-1], transforms=found[-1].transforms + transforms)
        return tuple(found)

    @property
    def num_rows(self) -> int | None:
        """How many rows there will be, where that is known beforehand."""
        numbers = [
            task.unit.num_rows if all(t.keeps_rows for t in self.chains[task.chain]) else None for task in self.tasks
        ]
        return None if None in numbers else sum(number or 0 for number in numbers)

    @property
    def fingerprint(self) -> str:
        """Tells one dataset from another: by its units and their order, not by what is done to their rows."""
        units = [(task.unit.name, _size(task.unit)) for task in self.tasks]
        return xxhash.xxh3_64_hexdigest(repr(units).encode())


class Executor(Protocol):
    """Runs pipelines: in this process, or in others."""

    def run(self, pipeline: Pipeline, unit: int = 0, offset: int = 0) -> Iterator[Delivered]:
        """The rows in order, from a row of a task's output on. Closing the iterator ends the work."""
        ...


Resolve = Callable[[Barrier, int], Sequence[Unit]]
"""Brings the rows of a barrier's inputs together, for an epoch; the units hold what came of it."""


def lowered(plan: Node, epoch: int, resolve: Resolve) -> Pipeline:
    """What is run for one epoch. Barriers are resolved on the way, inputs first."""
    match plan:
        case Read(source=source):
            return Pipeline(tuple(Task(unit, 0) for unit in source.units()), ((),))
        case Barrier():
            return Pipeline(tuple(Task(unit, 0) for unit in resolve(plan, epoch)), ((),))
        case Map(input=part, transform=transform):
            below = lowered(part, epoch, resolve)
            return replace(below, chains=tuple((*chain, transform) for chain in below.chains))
        case Reorder(input=part, seed=seed, every_epoch=every_epoch):
            below = lowered(part, epoch, resolve)
            order = permutation(len(below.tasks), seed, epoch if every_epoch else 0)
            return replace(below, tasks=tuple(below.tasks[index] for index in order))
        case Union(parts=parts):
            return _joined([lowered(part, epoch, resolve) for part in parts])
    raise TypeError(f"{type(plan).__name__} is no node that can be run")


def _size(unit: Unit) -> int:
    """In rows; where those are not known before they are read, in bytes: a file that was changed has other ones."""
    return unit.num_rows if unit.num_rows is not None else unit.num_bytes or 0


def _joined(pipelines: Sequence[Pipeline]) -> Pipeline:
    tasks: list[Task] = []
    chains: list[tuple[Transform, ...]] = []
    for pipeline in pipelines:
        tasks += [replace(task, chain=task.chain + len(chains)) for task in pipeline.tasks]
        chains += pipeline.chains
    return Pipeline(tuple(tasks), tuple(chains))
