"""Runs a pipeline in the current process: for small datasets, for debugging, and as a reference for other executors."""

from __future__ import annotations

from collections.abc import Iterator

from paceline.data.block import Block
from paceline.data.exec.pipeline import Pipeline
from paceline.data.sharding import RowDelivery
from paceline.data.source import Unit
from paceline.data.transform import Transform, TransformScope


class InlineExecutor:
    def __init__(self) -> None:
        self.scope = TransformScope()

    def run(self, pipeline: Pipeline, unit: int = 0, offset: int = 0) -> Iterator[RowDelivery]:
        for index in range(unit, len(pipeline.tasks)):
            task = pipeline.tasks[index]
            skip, passed = (offset if index == unit else 0), 0
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
