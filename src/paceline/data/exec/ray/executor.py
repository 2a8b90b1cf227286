"""Rows of a pipeline on Ray, fetched to this process: what `InlineExecutor` is on one machine."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing

from paceline._engine.ray.connect import imported
from paceline.data.exec.pipeline import Pipeline
from paceline.data.exec.ray.aside import InStore
from paceline.data.exec.ray.blocks import Placed, blocks_of
from paceline.data.exec.ray.carry import Lot
from paceline.data.exec.ray.values import unpacked
from paceline.data.exec.scatter import Chunk
from paceline.data.exec.spill import Held
from paceline.data.exec.stats import Record
from paceline.data.position import Delivered


class RayExecutor:
    """An `Executor`, and where the rows of barriers are set aside. `record` gets the statistics of all that it runs."""

    def __init__(self, record: Record | None = None, say: Callable[[str], None] | None = None) -> None:
        self.record = record
        self._say = say

    def placed(self, pipeline: Pipeline, unit: int = 0, offset: int = 0) -> Iterator[Placed]:
        """The rows by reference."""
        return blocks_of(pipeline, unit, offset, record=self.record, say=self._say)

    def run(self, pipeline: Pipeline, unit: int = 0, offset: int = 0) -> Iterator[Delivered]:
        ray = imported()
        with closing(self.placed(pipeline, unit, offset)) as blocks:  # type: ignore[type-var]
            for placed in blocks:
                yield Delivered(placed.unit, placed.offset, unpacked(ray.get(placed.ref)))

    def set_aside(self, pipeline: Pipeline, at_most: int | None) -> InStore:
        chunks: list[Chunk] = []
        num_rows = 0
        if at_most != 0:
            with closing(self.placed(pipeline)) as blocks:  # type: ignore[type-var]
                for placed in blocks:
                    chunks.append(Chunk(placed.unit, Lot(placed.ref, 0, placed.num_rows), placed.rows_bytes))
                    num_rows += placed.num_rows
                    if at_most is not None and num_rows >= at_most:
                        break
        return InStore(tuple(chunks), Held())
