"""Where new units begin and end among rows that were set aside: decided from counts, hashes and sorted keys alone."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from itertools import accumulate
from typing import Any

import numpy as np

from paceline.data.barriers import Repartition
from paceline.data.block import Block
from paceline.data.exec.scatter import Aside, Chunk
from paceline.data.keys import Keys

_SAMPLES = 20
"""How many rows of each future part are looked at to find where it begins."""


def even(num_rows: int, num_parts: int) -> list[int]:
    """Where parts of nearly equal size end."""
    return [num_rows * (part + 1) // num_parts for part in range(num_parts)]


def ends(num_rows: int, barrier: Repartition) -> list[int]:
    if barrier.num_blocks is not None:
        return even(num_rows, barrier.num_blocks)
    size = barrier.target_num_rows_per_block or 1
    return [*range(size, num_rows, size), *([num_rows] if num_rows else [])]


def rows(chunks: Sequence[Chunk], start: int, stop: int) -> list[Aside]:
    """Rows `start` to `stop` of all together."""
    ends = [0, *accumulate(chunk.num_rows for chunk in chunks)]
    pieces = []
    for number in range(max(bisect_right(ends, start) - 1, 0), len(chunks)):
        first = ends[number]
        if first >= stop:
            break
        begin, end = max(start - first, 0), min(stop - first, chunks[number].num_rows)
        if begin < end:
            pieces.append(chunks[number].part(begin, end))
    return pieces


def hash_cuts(hashes: Sequence[np.ndarray[Any, Any]], ends: Sequence[int]) -> list[list[int]]:
    """Of chunks that are sorted by hashes each, where parts that end with these ranks begin and end in each."""
    num_rows = sum(map(len, hashes))
    firsts = np.array([hash_at(hashes, num_rows, end) for end in ends[:-1]], np.uint64)
    return [[0, *np.searchsorted(found, firsts).tolist(), len(found)] for found in hashes]


def hash_at(hashes: Sequence[np.ndarray[Any, Any]], num_rows: int, rank: int) -> int:
    """The hash that so many of all are smaller than. They are even, so that only those near its place are looked at."""
    if rank >= num_rows:
        return (1 << 64) - 1
    spread = 8 * int(num_rows**0.5) + 16
    low, high = (((rank + side) << 64) // num_rows for side in (-spread, spread))
    low, high = max(low, 0), min(high, (1 << 64) - 1)
    found = _between(hashes, low, high)
    if found is None or not 0 <= rank - found[0] < len(found[1]):
        found = 0, np.concatenate(hashes)
    below, near = found
    return int(np.partition(near, rank - below)[rank - below])


def _between(hashes: Sequence[np.ndarray[Any, Any]], low: int, high: int) -> tuple[int, np.ndarray[Any, Any]]:
    """How many hashes are below, and those that are not but below `high`."""
    spans = [np.searchsorted(found, np.array([low, high], np.uint64)) for found in hashes]
    near = [found[begin:end] for found, (begin, end) in zip(hashes, spans, strict=True)]
    return sum(int(begin) for begin, _ in spans), np.concatenate(near)


def key_cuts(chunks: Sequence[Block], keys: Keys, num_parts: int, *, may_split: bool) -> list[list[int]]:
    """Of chunks that are sorted by keys each, where the parts begin and end in each; the last is the end of all.

    The bounds are keys of sampled rows. Rows of equal keys are of one part, unless they may be split: then those of
    earlier chunks come first.
    """
    num_rows = sum(block.num_rows for block in chunks)

    def ranked(number: int, row: int) -> tuple[Any, ...]:
        key = keys.row(chunks[number], row)
        return (*key, number, row) if may_split else key

    def begin(number: int, bound: tuple[Any, ...]) -> int:
        return bisect_left(range(chunks[number].num_rows), bound, key=lambda row: ranked(number, row))

    samples: list[tuple[Any, ...]] = []
    for number, block in enumerate(chunks):
        wanted = -(-_SAMPLES * num_parts * block.num_rows // num_rows) if num_parts > 1 else 1
        samples += [ranked(number, row) for row in range(0, block.num_rows, max(block.num_rows // wanted, 1))]
    samples.sort()
    found = [samples[len(samples) * part // num_parts] for part in range(1, num_parts)]
    found = [bound for index, bound in enumerate(found) if index == 0 or bound != found[index - 1]]
    return [[0, *(begin(number, bound) for bound in found), block.num_rows] for number, block in enumerate(chunks)]
