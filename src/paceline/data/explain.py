"""Renders a plan as text: as written, as optimized, and which processes run what."""

from __future__ import annotations

from collections.abc import Iterator

from paceline.data.exec.lowering import outline_plan
from paceline.data.optimizer import optimize_plan
from paceline.data.plan import Barrier, PlanNode, walk
from paceline.data.transform import PoolSpec


def explain_plan(plan: PlanNode) -> str:
    """Describe the plan as written, as optimized, and the stages that each unit passes through."""
    best = optimize_plan(plan)
    return "\n".join(
        ["plan", *_draw_tree(plan, 1), "", "as it is run", *_draw_tree(best, 1), "", *_explain_stages(best)]
    )


def _explain_stages(plan: PlanNode) -> Iterator[str]:
    """Describe which processes run what, below and above each barrier."""
    barriers = [node for node in walk(plan) if isinstance(node, Barrier)]
    for barrier in barriers:
        for part in barrier.inputs:
            yield from _stage_lines(part, f"before {barrier.name}")
    yield from _stage_lines(plan, f"after {barriers[-1].name}" if barriers else "stages")


def _stage_lines(plan: PlanNode, title: str) -> Iterator[str]:
    pipeline = outline_plan(plan)
    brought = next((node for node in reversed([*walk(plan)]) if isinstance(node, Barrier)), None)
    for number in dict.fromkeys(task.chain for task in pipeline.tasks):
        num_units = sum(task.chain == number for task in pipeline.tasks)
        units = f"{num_units} unit{'s' * (num_units != 1)}"
        if brought is not None:
            units = "as many units as it gives" if brought.name in title else f"as many units as {brought.name} gives"
        yield f"{title}: {units}"
        for stage in pipeline.stages(number):
            pool = stage.pool
            where = "in the processes that read" if pool is None else f"in {_format_pool(pool)} of its own"
            yield f"  {' -> '.join(filter(None, ['read' * (pool is None), stage.name]))}, {where}"


def _format_pool(pool: PoolSpec) -> str:
    number = f"{pool.min_size}" if pool.min_size == pool.max_size else f"{pool.min_size} to {pool.max_size}"
    gpus = f", {pool.num_gpus:g} GPU each," if pool.num_gpus else ""
    return f"{number} process{'es' * (pool.max_size != 1)}{gpus}"


def _draw_tree(node: PlanNode, depth: int) -> Iterator[str]:
    yield f"{'  ' * depth}{node.name}"
    for part in node.inputs:
        yield from _draw_tree(part, depth + 1)
