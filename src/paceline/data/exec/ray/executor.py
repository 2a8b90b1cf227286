"""Rows of a pipeline on Ray, fetched to this process: what `InlineExecutor` is on one machine."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing

from paceline._engine.ray.connect import imported
from paceline.data.exec.pipeline import Pipeline
from paceline.data.exec.ray.blocks import blocks_of
from paceline.data.exec.ray.values import unpacked
from paceline.data.exec.stats import Record
from paceline.data.position import Delivered


class RayExecutor:
    """An `Executor`. `record` gets the statistics of all that it runs."""

    def __init__(self, record: Record | None = None, say: Callable[[str], None] | None = None) -> None:
        self.record = record
        self._say = say

    def run(self, pipeline: Pipeline, unit: int = 0, offset: int = 0) -> Iterator[Delivered]:
        ray = imported()
        with closing(blocks_of(pipeline, unit, offset, record=self.record, say=self._say)) as blocks:  # type: ignore[type-var]
            for placed in blocks:
                yield Delivered(placed.unit, placed.offset, unpacked(ray.get(placed.ref)))
