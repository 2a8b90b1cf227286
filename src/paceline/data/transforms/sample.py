"""Transforms by row number: a random sample, and the first rows of each unit."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import xxhash

from paceline.data.block import Block
from paceline.data.shuffle_order import hash_indices
from paceline.data.transform import Transform, TransformScope


@dataclass(frozen=True)
class RandomSample(Transform):
    """Keeps each row with the same probability, by a hash of its number in its unit: the same rows every time."""

    fraction: float
    seed: int

    @property
    def name(self) -> str:
        return f"random_sample({self.fraction}, seed={self.seed})"

    def apply(self, blocks: Iterator[Block], scope: TransformScope) -> Iterator[Block]:
        return self._sample_blocks(blocks, self.seed ^ xxhash.xxh3_64_intdigest(scope.unit.encode()))

    def _sample_blocks(self, blocks: Iterator[Block], seed: int) -> Iterator[Block]:
        first = 0
        for block in blocks:
            keys = hash_indices(np.arange(first, first + block.num_rows), seed)
            first += block.num_rows
            yield block.take((keys / 2.0**64 < self.fraction).nonzero()[0])


@dataclass(frozen=True)
class LimitRows(Transform):
    """Keeps the first rows of each unit, so that no unit is read further than a global limit can need."""

    limit: int

    @property
    def name(self) -> str:
        return f"limit({self.limit}) of each unit"

    def apply(self, blocks: Iterator[Block], scope: TransformScope) -> Iterator[Block]:
        left = self.limit
        for block in blocks:
            yield block.slice(0, left)
            left -= min(left, block.num_rows)
            if not left:
                return
