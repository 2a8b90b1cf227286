"""Lowers a plan to the pipeline of an epoch: tasks in order, and the chains of stages they go through.

`InlineExecutor` runs a pipeline in the current process; `DatasetFacts` is what is known without running it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from typing import Protocol, TypeVar

import xxhash

from paceline.data.block import Block, Schema
from paceline.data.exec.stats import StatsRecorder
from paceline.data.order.sharding import RowDelivery
from paceline.data.order.shuffle import Mixing, compute_mixing, permutation
from paceline.data.planning.barriers import RandomShuffle
from paceline.data.planning.optimizer import optimize_plan
from paceline.data.planning.plan import (
    Barrier,
    Map,
    PlanNode,
    PoolSpec,
    Read,
    ReorderUnits,
    Transform,
    TransformScope,
    Union,
    Unit,
    walk,
)

EPOCHS_KEPT = 2


@dataclass(frozen=True)
class PipelineStage:
    """Transforms that run in one process, one after another."""

    transforms: tuple[Transform, ...]
    pool: PoolSpec | None = None
    """The stage's own processes; None for the first stage, which runs where the unit is read."""

    @property
    def name(self) -> str:
        return " -> ".join(transform.name for transform in self.transforms)

    def title(self, is_first: bool) -> str:
        """The name in statistics: the first stage also reads."""
        return self.name if not is_first else f"read -> {self.name}" if self.name else "read"


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
        stages: list[PipelineStage] = [PipelineStage(())]
        for has_pool, group in groupby(self.chains[chain], key=lambda transform: transform.pool is not None):
            transforms = tuple(group)
            if has_pool:
                stages += [PipelineStage((transform,), transform.pool) for transform in transforms]
            else:
                stages[-1] = replace(stages[-1], transforms=stages[-1].transforms + transforms)
        return tuple(stages)

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
            if transform.depends_on_row_number:
                from paceline.data.exec.exchange import with_unique_names

                below = replace(below, tasks=with_unique_names(below.tasks))
                names = {task.unit.name: number for number, task in enumerate(below.tasks)}
                transform = transform.bind_places(epoch, names)
            return replace(below, chains=tuple((*chain, transform) for chain in below.chains))
        case ReorderUnits(input=part, seed=seed, every_epoch=every_epoch):
            below = lower_plan(part, epoch, resolve)
            order = permutation(len(below.tasks), seed, epoch if every_epoch else 0)
            return replace(below, tasks=tuple(below.tasks[index] for index in order))
        case Union(parts=parts):
            return _join_pipelines([lower_plan(part, epoch, resolve) for part in parts])
    raise TypeError(f"{type(plan).__name__} cannot be lowered to a pipeline")


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


class InlineExecutor:
    def __init__(self) -> None:
        self.scope = TransformScope()

    def run(self, pipeline: Pipeline, unit: int = 0, offset: int = 0) -> Iterator[RowDelivery]:
        for index in range(unit, len(pipeline.tasks)):
            task = pipeline.tasks[index]
            skip, passed = (offset if index == unit else 0), 0
            self.scope.number = index
            for block in process_unit(task.unit, pipeline.chains[task.chain], self.scope):
                cut = min(max(skip - passed, 0), block.num_rows)
                if block.num_rows > cut:
                    yield RowDelivery(index, passed + cut, block.slice(cut))
                passed += block.num_rows


def process_unit(unit: Unit, transforms: tuple[Transform, ...], scope: TransformScope) -> Iterator[Block]:
    """Read a unit and apply transforms to it in this process."""
    scope.unit = unit.name
    blocks = unit.read()
    for transform in transforms:
        blocks = transform.apply(blocks, scope)
    return blocks


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
        reordering = [
            (node.name, isinstance(node, ReorderUnits | RandomShuffle) and node.every_epoch)
            for node in walk(self.plan)
            if isinstance(node, Barrier | ReorderUnits)
        ]
        return xxhash.xxh3_64_hexdigest(repr((outline_plan(self.plan).fingerprint, reordering)).encode())

    def num_rows(self) -> int | None:
        from paceline.data.planning.plan_queries import known_num_rows

        return known_num_rows(self.plan)

    def mixing(self) -> Mixing:
        return compute_mixing(self.plan, [task.unit for task in outline_plan(self.plan).tasks])

    def schema(self) -> Schema | None:
        from paceline.data.planning.plan_queries import find_schema

        return find_schema(self.plan, self.executor)


@dataclass
class DatasetEntry:
    """A dataset while it is served."""

    plan: PlanNode
    record: StatsRecorder = field(default_factory=StatsRecorder)
    pipelines: dict[int, Pipeline] = field(default_factory=dict)
    """By epoch."""

    def drop_pipelines_before(self, epoch: int) -> None:
        """Drop those of old epochs, so that the rows they store make room for those of this epoch."""
        for old in sorted(old for old in self.pipelines if old < epoch)[: 1 - EPOCHS_KEPT]:
            del self.pipelines[old]

    def keep_pipeline(self, epoch: int, pipeline: Pipeline) -> None:
        """Keep the pipeline, and drop those of old epochs."""
        self.pipelines[epoch] = pipeline
        for old in sorted(self.pipelines)[:-EPOCHS_KEPT]:
            if old != epoch:
                del self.pipelines[old]


_Entry = TypeVar("_Entry", bound=DatasetEntry)


def find_dataset(datasets: Mapping[str, _Entry], name: str) -> _Entry:
    if name not in datasets:
        raise KeyError(f"unknown dataset {name!r}; the datasets are {', '.join(map(repr, datasets)) or 'none'}")
    return datasets[name]


def check_gpus(name: str, pool: PoolSpec | None, num_gpus: int) -> None:
    """Reject a request that this machine can never satisfy."""
    if pool is not None and pool.num_gpus > num_gpus:
        raise ValueError(
            f"{name} needs {pool.num_gpus:g} GPUs per process (num_gpus), and {num_gpus} are available\n\n"
            "hint: CUDA_VISIBLE_DEVICES sets the available GPUs"
        )
