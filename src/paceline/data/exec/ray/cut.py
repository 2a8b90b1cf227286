"""Cuts a block into the rows of each worker, where the block lies."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from paceline.data.block import Block
from paceline.data.cutting import quickly_cut
from paceline.data.exec.ray.values import packed, unpacked
from paceline.data.parts import NOBODY, Division, Owners, Span
from paceline.data.sparse import Rows, Sparse


def cut(block: Any, division: Division, span: Span, ranks: Sequence[int]) -> Any:
    """A task: the rows of each of the ranks, as they are sent; of a single rank, those alone."""
    found = cut_up(unpacked(block), division, span, ranks)
    return found[0] if len(found) == 1 else found


def cut_up(block: Block, division: Division, span: Span, ranks: Sequence[int]) -> list[Any]:
    whole = quickly_cut(block)
    rows = Owners.of(division).rows(span)
    return [(_runs(rows[rank]), packed(whole.take(rows[rank]))) for rank in ranks]


def pieced(sent: Any, num_rows: int) -> Block | Sparse:
    """What a worker makes of its rows of a block."""
    runs, value = sent
    rows = _expanded(runs)
    at_hand = writable(unpacked(value))
    return at_hand if len(rows) == num_rows else Sparse(num_rows, rows, at_hand)


def writable(block: Block) -> Block:
    """The same rows in memory of our own: what Ray keeps can be read only, and is wanted back."""
    columns = {
        name: values.copy() if isinstance(values, np.ndarray) else values for name, values in block.columns.items()
    }
    return Block._made(columns, block.num_rows)


def shared_by(division: Division, span: Span) -> tuple[Sequence[int], bool]:
    """The ranks that a block is for, of which some may have no rows in it; and whether all rows are for one of them."""
    if division.parts == 1:
        return range(division.world), True
    # Where rows of several blocks are brought together, those that have none need to know the types of columns.
    if division.start.window or division.chunk_rows is None or span.num_rows >= division.group:
        return range(division.parts), False
    owners = np.unique(Owners.of(division).of_rows(span)).tolist()
    ranks = [rank for rank in owners if rank != NOBODY]
    return ranks, len(owners) == len(ranks) == 1


def _runs(rows: Rows) -> tuple[bool, Any]:
    """Numbers of rows, or where runs of them begin and end: what takes less room."""
    breaks = np.flatnonzero(np.diff(rows) != 1) + 1
    if 2 * (len(breaks) + 1) >= len(rows):
        return False, rows.astype(np.int32)
    begins = rows[np.concatenate([[0], breaks])]
    stops = rows[np.concatenate([breaks, [len(rows)]]) - 1] + 1
    return True, np.stack([begins, stops]).astype(np.int32)


def _expanded(runs: tuple[bool, Any]) -> Rows:
    in_runs, sent = runs
    numbers: Rows = sent.astype(np.int64)
    if in_runs:
        begins, stops = numbers
        lengths = stops - begins
        ends = np.cumsum(lengths)
        numbers = np.arange(ends[-1]) + np.repeat(begins - (ends - lengths), lengths)
    return numbers
