"""Runs a pipeline on Ray: fetches its rows to this process, or stores the rows of a barrier in Ray's object store.

The stored objects are the blocks that Ray Data made, so when a node is lost, Ray recomputes only its blocks. Only the
columns that decide where new units begin and end are fetched. Then every chunk is cut on its own node, so that a unit
fetches only its own rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from paceline._engine.ray.connection import import_ray
from paceline.data.block import Block
from paceline.data.exec.exchange import ExchangedRows
from paceline.data.exec.pipeline import Pipeline
from paceline.data.exec.ray.block_stream import PlacedBlock, stream_blocks
from paceline.data.exec.ray.ray_values import pack_for_ray, unpack_from_ray
from paceline.data.exec.ray.shipping import ObjectPiece
from paceline.data.exec.scatter import StoredChunk, StoredRows
from paceline.data.exec.spill import SpillHandle
from paceline.data.exec.stats import StatsRecorder
from paceline.data.order.sharding import RowDelivery


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


_MIN_TASK_BYTES = 1 << 20
"""A smaller chunk is fetched whole by everyone who needs a part of it: a task would take longer."""
_AT_A_TIME = 2
"""Small tasks per node. They request no cores: the consumer that waits for these rows may hold them all."""


@dataclass(frozen=True)
class RayExchangedRows(ExchangedRows):
    def load_columns(self, names: Sequence[str]) -> list[Block]:
        ray = import_ray()
        task = ray.remote(_select_columns).options(num_cpus=0, max_retries=-1)
        large = _run_bounded(
            lambda ref: [task.remote(ref, list(names))], [_chunk_ref(chunk) for chunk in self._large_chunks()]
        )
        selected = {id(chunk): refs[0] for chunk, refs in zip(self._large_chunks(), large, strict=True)}
        return [unpack_from_ray(ray.get(selected.get(id(chunk), _chunk_ref(chunk)))) for chunk in self.chunks]

    def divide(self, cuts: Sequence[Sequence[int]]) -> list[list[StoredRows]]:
        num_parts = len(cuts[0]) - 1 if cuts else 0
        if num_parts < 2:
            return super().divide(cuts)
        # Empty ranges get no object: if the rows are already sorted, a chunk has rows for few of many parts.
        spans = {
            id(chunk): [span for span in pairwise(ends) if span[0] < span[1]]
            for chunk, ends in zip(self.chunks, cuts, strict=True)
        }
        task = import_ray().remote(_slice_parts)

        def cut(chunk: StoredChunk) -> list[Any]:
            chunk_spans = spans[id(chunk)]
            options = {"num_cpus": 0, "max_retries": -1, "num_returns": len(chunk_spans)}
            refs = task.options(**options).remote(_chunk_ref(chunk), chunk_spans)
            return refs if len(chunk_spans) > 1 else [refs]

        large = _run_bounded(cut, self._large_chunks())
        cut_pieces: dict[int, list[StoredRows]] = {
            id(chunk): [
                ObjectPiece(ref, 0, stop - begin) for ref, (begin, stop) in zip(refs, spans[id(chunk)], strict=True)
            ]
            for chunk, refs in zip(self._large_chunks(), large, strict=True)
        }
        parts: list[list[StoredRows]] = [[] for _ in range(num_parts)]
        for chunk, ends in zip(self.chunks, cuts, strict=True):
            pieces = iter(cut_pieces.get(id(chunk)) or [chunk.part(*span) for span in spans[id(chunk)]])
            for part in range(num_parts):
                if ends[part] < ends[part + 1]:
                    parts[part].append(next(pieces))
        return parts

    def _large_chunks(self) -> list[StoredChunk]:
        return [chunk for chunk in self.chunks if chunk.num_bytes >= _MIN_TASK_BYTES]


def _chunk_ref(chunk: StoredChunk) -> Any:
    assert isinstance(chunk.piece, ObjectPiece)
    return chunk.piece.ref


def _run_bounded(start: Callable[[Any], list[Any]], works: Sequence[Any]) -> list[list[Any]]:
    """Run all works, a bounded number at a time, and return the results in order."""
    ray = import_ray()
    most = _AT_A_TIME * max(1, sum(1 for node in ray.nodes() if node["Alive"]))
    results: list[list[Any]] = []
    running: list[Any] = []
    for work in works:
        if len(running) >= most:
            _, running = ray.wait(running, fetch_local=False)
        results.append(start(work))
        running.append(results[-1][0])
    if running:
        ray.wait(running, num_returns=len(running), fetch_local=False)
    return results


def _select_columns(value: Any, names: list[str]) -> Any:
    return pack_for_ray(unpack_from_ray(value).select(names))


def _slice_parts(value: Any, spans: list[tuple[int, int]]) -> Any:
    block = unpack_from_ray(value)
    parts = [pack_for_ray(block.slice(begin, stop)) for begin, stop in spans]
    return parts if len(parts) > 1 else parts[0]
