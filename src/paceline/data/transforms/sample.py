"""Rows by their number: a sample of them, and the first ones of each unit."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import xxhash

from paceline.data.block import Block
from paceline.data.order import hashed
from paceline.data.transform import Scope, Transform


@dataclass(frozen=True)
class RandomSample(Transform):
    """Each row with the same chance, by a hash of its number in its unit: the same rows every time."""

    fraction: float
    seed: int

    @property
    def name(self) -> str:
        return f"random_sample({self.fraction}, seed={self.seed})"

    def apply(self, blocks: Iterator[Block], scope: Scope) -> Iterator[Block]:
        return self._sampled(blocks, self.seed ^ xxhash.xxh3_64_intdigest(scope.unit.encode()))

    def _sampled(self, blocks: Iterator[Block], seed: int) -> Iterator[Block]:
        first = 0
        for block in blocks:
            keys = hashed(np.arange(first, first + block.num_rows), seed)
            first += block.num_rows
            yield block.take((keys / 2.0**64 < self.fraction).nonzero()[0])


@dataclass(frozen=True)
class LimitRows(Transform):
    """Of each unit the first rows only: no unit is read further than a limit above all of them can ask for."""

    limit: int

    @property
    def name(self) -> str:
        return f"limit({self.limit}) of each unit"

    def apply(self, blocks: Iterator[Block], scope: Scope) -> Iterator[Block]:
        left = self.limit
        for block in blocks:
            yield block.slice(0, left)
            left -= min(left, block.num_rows)
            if not left:
                return
