"""What workers and the service that serves their rows exchange: messages, and the rows of each worker in a block."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np

from paceline._engine.messages import RAY_ROWS_PREFIX
from paceline.data.block import Block
from paceline.data.exec.failure import DataFailure
from paceline.data.exec.ray.ray_values import pack_for_ray, unpack_from_ray
from paceline.data.order.row_ownership import NOBODY, BlockSpan, EpochDivision, RowOwners, Rows, SparseBlock


def format_address(cluster: str, namespace: str, name: str, token: str) -> str:
    """The address a worker gets: of the cluster, and of the service in it."""
    return f"{RAY_ROWS_PREFIX}{cluster}/{namespace}/{name}/{token}"


class OpenRowsRequest(msgspec.Struct, frozen=True):
    """A worker's request to open a dataset."""

    dataset: str
    division: EpochDivision
    rank: int
    attempt: int
    name: str
    """Identifies this request, in case it arrives twice."""

    @property
    def pass_key(self) -> tuple[str, EpochDivision]:
        """Workers with equal keys share a pass."""
        return self.dataset, self.division


class PiecesReply(msgspec.Struct, frozen=True):
    """The answer to a worker: pieces, the end, or why there are no more."""

    pieces: tuple[tuple[int, int, int, bool], ...] = ()
    """For each piece: unit, offset, rows of the whole block, and whether the piece is the block itself."""
    ended: bool = False
    failure: DataFailure | None = None


def cut_task(block: Any, division: EpochDivision, span: BlockSpan, ranks: Sequence[int]) -> Any:
    """Ray task: the rows of each rank, encoded for sending; for a single rank, its rows alone."""
    pieces = cut_block(unpack_from_ray(block), division, span, ranks)
    return pieces[0] if len(pieces) == 1 else pieces


def cut_block(block: Block, division: EpochDivision, span: BlockSpan, ranks: Sequence[int]) -> list[Any]:
    block = block.with_numpy_numbers()
    rows = RowOwners.for_division(division).rows_by_rank(span)
    return [(_encode_runs(rows[rank]), pack_for_ray(block.take(rows[rank]))) for rank in ranks]


def assemble_piece(piece: Any, num_rows: int) -> Block | SparseBlock:
    """Decode a worker's rows of a block."""
    runs, value = piece
    rows = _decode_runs(runs)
    block = copy_writable(unpack_from_ray(value))
    return block if len(rows) == num_rows else SparseBlock(num_rows, rows, block)


def copy_writable(block: Block) -> Block:
    """Copy the rows into our own memory: Ray's objects are read-only, and Ray wants their memory back."""
    columns = {
        name: values.copy() if isinstance(values, np.ndarray) else values for name, values in block.columns.items()
    }
    return Block._from_valid_columns(columns, block.num_rows)


def ranks_of_block(division: EpochDivision, span: BlockSpan) -> tuple[Sequence[int], bool]:
    """The ranks a block is for, some of which may have no rows in it; and whether one rank owns all rows."""
    if division.num_parts == 1:
        return range(division.world), True
    # Where rows of several blocks are combined, ranks without rows still need the column types.
    if division.start.window or division.chunk_rows is None or span.num_rows >= division.group_rows:
        return range(division.num_parts), False
    owners = np.unique(RowOwners.for_division(division).ranks_of_rows(span)).tolist()
    ranks = [rank for rank in owners if rank != NOBODY]
    return ranks, len(owners) == len(ranks) == 1


def _encode_runs(rows: Rows) -> tuple[bool, Any]:
    """Row numbers, or the begin and end of runs: whichever is smaller."""
    breaks = np.flatnonzero(np.diff(rows) != 1) + 1
    if 2 * (len(breaks) + 1) >= len(rows):
        return False, rows.astype(np.int32)
    begins = rows[np.concatenate([[0], breaks])]
    stops = rows[np.concatenate([breaks, [len(rows)]]) - 1] + 1
    return True, np.stack([begins, stops]).astype(np.int32)


def _decode_runs(runs: tuple[bool, Any]) -> Rows:
    in_runs, encoded = runs
    numbers: Rows = encoded.astype(np.int64)
    if in_runs:
        begins, stops = numbers
        lengths = stops - begins
        ends = np.cumsum(lengths)
        numbers = np.arange(ends[-1]) + np.repeat(begins - (ends - lengths), lengths)
    return numbers
