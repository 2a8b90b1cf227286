"""A plan in words: as it was asked for, as it is run, and what runs in which processes."""

from __future__ import annotations

from collections.abc import Iterator

from paceline.data.exec.lower import outline
from paceline.data.optimize import optimized
from paceline.data.plan import Barrier, Node, walk
from paceline.data.transform import Pool


def explained(plan: Node) -> str:
    """The plan as it was asked for, as it is run, and the stages that each unit goes through."""
    best = optimized(plan)
    return "\n".join(["plan", *_drawn(plan, 1), "", "as it is run", *_drawn(best, 1), "", *_stages(best)])


def _stages(plan: Node) -> Iterator[str]:
    """What runs in which processes, below and above each step for which all rows are brought together."""
    barriers = [node for node in walk(plan) if isinstance(node, Barrier)]
    for barrier in barriers:
        for part in barrier.inputs:
            yield from _stage_lines(part, f"before {barrier.name}")
    yield from _stage_lines(plan, f"after {barriers[-1].name}" if barriers else "stages")


def _stage_lines(plan: Node, title: str) -> Iterator[str]:
    pipeline = outline(plan)
    brought = next((node for node in reversed([*walk(plan)]) if isinstance(node, Barrier)), None)
    for number in dict.fromkeys(task.chain for task in pipeline.tasks):
        num_units = sum(task.chain == number for task in pipeline.tasks)
        units = f"{num_units} unit{'s' * (num_units != 1)}"
        if brought is not None:
            units = "as many units as it gives" if brought.name in title else f"as many units as {brought.name} gives"
        yield f"{title}: {units}"
        for stage in pipeline.stages(number):
            pool = stage.pool
            where = "in the processes that read" if pool is None else f"in {_bounds(pool)} of its own"
            yield f"  {' -> '.join(filter(None, ['read' * (pool is None), stage.name]))}, {where}"


def _bounds(pool: Pool) -> str:
    number = f"{pool.least}" if pool.least == pool.most else f"{pool.least} to {pool.most}"
    gpus = f", {pool.num_gpus:g} GPU each," if pool.num_gpus else ""
    return f"{number} process{'es' * (pool.most != 1)}{gpus}"


def _drawn(node: Node, depth: int) -> Iterator[str]:
    yield f"{'  ' * depth}{node.name}"
    for part in node.inputs:
        yield from _drawn(part, depth + 1)
