"""Runs a pipeline in this very process: for small datasets, for a debugger, and to compare other executors with."""

from __future__ import annotations

from collections.abc import Iterator

from paceline.data.block import Block
from paceline.data.exec.pipeline import Pipeline
from paceline.data.position import Delivered
from paceline.data.source import Unit
from paceline.data.transform import Scope, Transform


class InlineExecutor:
    def __init__(self) -> None:
        self.scope = Scope()

    def run(self, pipeline: Pipeline, unit: int = 0, offset: int = 0) -> Iterator[Delivered]:
        for index in range(unit, len(pipeline.tasks)):
            task = pipeline.tasks[index]
            skip, passed = (offset if index == unit else 0), 0
            for block in processed(task.unit, pipeline.chains[task.chain], self.scope):
                cut = min(max(skip - passed, 0), block.num_rows)
                if block.num_rows > cut:
                    yield Delivered(index, passed + cut, block.slice(cut))
                passed += block.num_rows


def processed(unit: Unit, transforms: tuple[Transform, ...], scope: Scope) -> Iterator[Block]:
    """What comes of a unit that is read and sent through transforms here."""
    scope.unit = unit.name
    blocks = unit.read()
    for transform in transforms:
        blocks = transform.apply(blocks, scope)
    return blocks
