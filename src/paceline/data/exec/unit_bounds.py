"""Where new units begin and end among stored rows: decided from counts, hashes and sorted keys alone."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from itertools import accumulate
from typing import Any

import numpy as np

from paceline.data.block import Block
from paceline.data.exec.scatter import StoredChunk, StoredRows
from paceline.data.planning.barriers import Repartition
from paceline.data.planning.sort_keys import SortKeys

_SAMPLES = 20
"""Rows sampled per future part to find where it begins."""


def even_ends(num_rows: int, num_parts: int) -> list[int]:
    """The end positions of parts of nearly equal size."""
    return [num_rows * (part + 1) // num_parts for part in range(num_parts)]


def repartition_ends(num_rows: int, barrier: Repartition) -> list[int]:
    if barrier.num_blocks is not None:
        return even_ends(num_rows, barrier.num_blocks)
    size = barrier.target_num_rows_per_block or 1
    return [*range(size, num_rows, size), *([num_rows] if num_rows else [])]


def slice_chunks(chunks: Sequence[StoredChunk], start: int, stop: int) -> list[StoredRows]:
    """Rows `start` to `stop` of all chunks together."""
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
    """Where parts that end at these ranks begin and end in each chunk; each chunk is sorted by hash."""
    num_rows = sum(map(len, hashes))
    firsts = np.array([hash_at_rank(hashes, num_rows, end) for end in ends[:-1]], np.uint64)
    return [[0, *np.searchsorted(chunk, firsts).tolist(), len(chunk)] for chunk in hashes]


def hash_at_rank(hashes: Sequence[np.ndarray[Any, Any]], num_rows: int, rank: int) -> int:
    """The hash with `rank` smaller ones. Hashes are uniform, so only those near the expected value are examined."""
    if rank >= num_rows:
        return (1 << 64) - 1
    spread = 8 * int(num_rows**0.5) + 16
    low, high = (((rank + side) << 64) // num_rows for side in (-spread, spread))
    low, high = max(low, 0), min(high, (1 << 64) - 1)
    num_below, candidates = _hashes_between(hashes, low, high)
    if not 0 <= rank - num_below < len(candidates):
        num_below, candidates = 0, np.concatenate(hashes)
    return int(np.partition(candidates, rank - num_below)[rank - num_below])


def _hashes_between(hashes: Sequence[np.ndarray[Any, Any]], low: int, high: int) -> tuple[int, np.ndarray[Any, Any]]:
    """The number of hashes below `low`, and the hashes from `low` up to `high`."""
    spans = [np.searchsorted(chunk, np.array([low, high], np.uint64)) for chunk in hashes]
    parts = [chunk[begin:end] for chunk, (begin, end) in zip(hashes, spans, strict=True)]
    return sum(int(begin) for begin, _ in spans), np.concatenate(parts)


def key_cuts(chunks: Sequence[Block], keys: SortKeys, num_parts: int, *, may_split: bool) -> list[list[int]]:
    """Where the parts begin and end in each chunk, which is sorted by key; the last cut is the end of the chunk.

    The bounds are keys of sampled rows. Rows with equal keys stay in one part unless they may be split: then those of
    earlier chunks come first.
    """
    num_rows = sum(block.num_rows for block in chunks)

    def rank_key(number: int, row: int) -> tuple[Any, ...]:
        key = keys.sort_key(chunks[number], row)
        return (*key, number, row) if may_split else key

    def find_begin(number: int, bound: tuple[Any, ...]) -> int:
        return bisect_left(range(chunks[number].num_rows), bound, key=lambda row: rank_key(number, row))

    samples: list[tuple[Any, ...]] = []
    for number, block in enumerate(chunks):
        num_samples = -(-_SAMPLES * num_parts * block.num_rows // num_rows) if num_parts > 1 else 1
        samples += [rank_key(number, row) for row in range(0, block.num_rows, max(block.num_rows // num_samples, 1))]
    samples.sort()
    bounds = [samples[len(samples) * part // num_parts] for part in range(1, num_parts)]
    bounds = [bound for index, bound in enumerate(bounds) if index == 0 or bound != bounds[index - 1]]
    return [
        [0, *(find_begin(number, bound) for bound in bounds), block.num_rows] for number, block in enumerate(chunks)
    ]
