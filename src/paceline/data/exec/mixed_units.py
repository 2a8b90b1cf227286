"""A unit of rows from several datasets, one after the other as the mix says. Only a few rows of each are in memory."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from paceline._core.errors import DataError
from paceline.data.block import Block
from paceline.data.planning.mix_pattern import MixSpan
from paceline.data.planning.plan import Unit

_FIRST_ROWS = 64
_MAX_ROWS = 1 << 16
_BLOCK_BYTES = 4 << 20


@dataclass(frozen=True)
class MixedUnit:
    name: str
    spans: tuple[MixSpan, ...]
    parts: tuple[tuple[Unit, ...], ...]
    """For each dataset, the units that have its rows, and no others."""

    @property
    def num_rows(self) -> int:
        return sum(span.num_rows for span in self.spans)

    @property
    def num_bytes(self) -> int | None:
        sizes = [unit.num_bytes for units in self.parts for unit in units]
        return None if None in sizes else sum(size or 0 for size in sizes)

    def read(self) -> Iterator[Block]:
        streams = [_RowStream(units) for units in self.parts]
        num_rows = _FIRST_ROWS
        for span in self.spans:
            datasets, begin = span.window.datasets, span.begin
            while begin < span.end:
                end = min(begin + num_rows, span.end)
                block = self._take_rows(streams, datasets[np.arange(begin, end) % len(datasets)])
                yield block
                begin = end
                num_rows = max(1, min(_MAX_ROWS, _BLOCK_BYTES * block.num_rows // max(block.nbytes, 1)))

    def _take_rows(self, streams: list[_RowStream], datasets: np.ndarray[tuple[int], np.dtype[np.int64]]) -> Block:
        counts = np.bincount(datasets, minlength=len(streams))
        blocks = [stream.take(count) for stream, count in zip(streams, counts.tolist(), strict=True)]
        if [block.num_rows for block in blocks] != counts.tolist():
            raise DataError(f"{self.name}: a file has fewer rows than it had when the dataset was planned")
        # The rows of the first dataset come first in the joined block, then those of the second.
        order = np.empty(len(datasets), np.int64)
        order[np.argsort(datasets, kind="stable")] = np.arange(len(datasets))
        return Block.concat(blocks).take(order)


class _RowStream:
    def __init__(self, units: tuple[Unit, ...]) -> None:
        self._blocks = (block for unit in units for block in unit.read())
        self._rest = Block.empty()

    def take(self, num_rows: int) -> Block:
        """Return the next rows; fewer if there are no more."""
        parts: list[Block] = []
        while num_rows:
            if not self._rest.num_rows:
                block = next(self._blocks, None)
                if block is None:
                    break
                self._rest = block
            parts.append(self._rest.slice(0, num_rows))
            self._rest = self._rest.slice(num_rows)
            num_rows -= parts[-1].num_rows
        return Block.concat(parts)
