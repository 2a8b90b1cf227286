"""Runs a pipeline on Ray and fetches its rows to this process."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing

from paceline._engine.ray.connection import import_ray
from paceline.data.exec.pipeline import Pipeline
from paceline.data.exec.ray.block_stream import PlacedBlock, stream_blocks
from paceline.data.exec.ray.exchanged_rows import RayExchangedRows
from paceline.data.exec.ray.ray_values import unpack_from_ray
from paceline.data.exec.ray.shipping import ObjectPiece
from paceline.data.exec.scatter import StoredChunk
from paceline.data.exec.spill import SpillHandle
from paceline.data.exec.stats import StatsRecorder
from paceline.data.sharding import RowDelivery


class RayExecutor:
    """An `Executor` that also stores the rows of barriers. `record` gets the statistics of everything it runs."""

    def __init__(self, record: StatsRecorder | None = None, say: Callable[[str], None] | None = None) -> None:
        self.record = record
        self._say = say

    def stream_placed(self, pipeline: Pipeline, unit: int = 0, offset: int = 0) -> Iterator[PlacedBlock]:
        """Yield the rows by reference."""
        return stream_blocks(pipeline, unit, offset, record=self.record, say=self._say)

    def run(self, pipeline: Pipeline, unit: int = 0, offset: int = 0) -> Iterator[RowDelivery]:
        ray = import_ray()
        with closing(self.stream_placed(pipeline, unit, offset)) as blocks:  # type: ignore[type-var]
            for placed in blocks:
                yield RowDelivery(placed.unit, placed.offset, unpack_from_ray(ray.get(placed.ref)))

    def store_rows(self, pipeline: Pipeline, at_most: int | None) -> RayExchangedRows:
        chunks: list[StoredChunk] = []
        num_rows = 0
        if at_most != 0:
            with closing(self.stream_placed(pipeline)) as blocks:  # type: ignore[type-var]
                for placed in blocks:
                    chunks.append(
                        StoredChunk(placed.unit, ObjectPiece(placed.ref, 0, placed.num_rows), placed.rows_bytes)
                    )
                    num_rows += placed.num_rows
                    if at_most is not None and num_rows >= at_most:
                        break
        return RayExchangedRows(tuple(chunks), SpillHandle())
