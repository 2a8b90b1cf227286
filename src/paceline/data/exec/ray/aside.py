"""Rows of a barrier set aside in the object store, which spills to disk by itself.

What lies there are the blocks that Ray Data made, so a node that is lost costs the work of making its blocks again. To
decide where new units begin and end, only the columns that say so are fetched. Then every chunk is cut where it lies,
so that a unit fetches its own rows and no others.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from paceline._engine.ray.connect import imported
from paceline.data.block import Block
from paceline.data.exec.exchange import Exchanged
from paceline.data.exec.ray.carry import Lot
from paceline.data.exec.ray.values import packed, unpacked
from paceline.data.exec.scatter import Aside, Chunk

_SMALL = 1 << 20
"""A chunk of fewer bytes is fetched whole by whoever needs some of it: a task would take longer."""
_AT_A_TIME = 2
"""Small tasks on each node. They ask for no cores: who waits for these rows may have them all."""


@dataclass(frozen=True)
class InStore(Exchanged):
    def columns(self, names: Sequence[str]) -> list[Block]:
        ray = imported()
        task = ray.remote(_columns).options(num_cpus=0, max_retries=-1)
        large = _bounded(lambda ref: [task.remote(ref, list(names))], [_ref(chunk) for chunk in self._large()])
        found = {id(chunk): refs[0] for chunk, refs in zip(self._large(), large, strict=True)}
        return [unpacked(ray.get(found.get(id(chunk), _ref(chunk)))) for chunk in self.chunks]

    def divided(self, cuts: Sequence[Sequence[int]]) -> list[list[Aside]]:
        num_parts = len(cuts[0]) - 1 if cuts else 0
        if num_parts < 2:
            return super().divided(cuts)
        # What has no rows is no object: a chunk has rows for few of many parts where they are sorted already.
        spans = {id(chunk): [span for span in pairwise(ends) if span[0] < span[1]] for chunk, ends in self._cut(cuts)}
        task = imported().remote(_parts)

        def cut(chunk: Chunk) -> list[Any]:
            own = spans[id(chunk)]
            refs = task.options(num_cpus=0, max_retries=-1, num_returns=len(own)).remote(_ref(chunk), own)
            return refs if len(own) > 1 else [refs]

        large = _bounded(cut, self._large())
        lots: dict[int, list[Aside]] = {
            id(chunk): [Lot(ref, 0, stop - begin) for ref, (begin, stop) in zip(refs, spans[id(chunk)], strict=True)]
            for chunk, refs in zip(self._large(), large, strict=True)
        }
        parts: list[list[Aside]] = [[] for _ in range(num_parts)]
        for chunk, ends in self._cut(cuts):
            own = iter(lots.get(id(chunk)) or [chunk.part(*span) for span in spans[id(chunk)]])
            for part in range(num_parts):
                if ends[part] < ends[part + 1]:
                    parts[part].append(next(own))
        return parts

    def _large(self) -> list[Chunk]:
        return [chunk for chunk in self.chunks if chunk.num_bytes >= _SMALL]

    def _cut(self, cuts: Sequence[Sequence[int]]) -> Iterator[tuple[Chunk, Sequence[int]]]:
        return zip(self.chunks, cuts, strict=True)


def _ref(chunk: Chunk) -> Any:
    assert isinstance(chunk.piece, Lot)
    return chunk.piece.ref


def _bounded(start: Callable[[Any], list[Any]], works: Sequence[Any]) -> list[list[Any]]:
    """What came of all works, in their order; so many at a time."""
    ray = imported()
    most = _AT_A_TIME * max(1, sum(1 for node in ray.nodes() if node["Alive"]))
    found: list[list[Any]] = []
    running: list[Any] = []
    for work in works:
        if len(running) >= most:
            _, running = ray.wait(running, fetch_local=False)
        found.append(start(work))
        running.append(found[-1][0])
    if running:
        ray.wait(running, num_returns=len(running), fetch_local=False)
    return found


def _columns(value: Any, names: list[str]) -> Any:
    return packed(unpacked(value).select(names))


def _parts(value: Any, spans: list[tuple[int, int]]) -> Any:
    block = unpacked(value)
    parts = [packed(block.slice(begin, stop)) for begin, stop in spans]
    return parts if len(parts) > 1 else parts[0]
