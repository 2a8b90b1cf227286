"""How large the blocks are that somebody is to take."""

from __future__ import annotations

from collections.abc import Iterator

from paceline.data.block import Block
from paceline.data.context import DataContext


def pieces(block: Block, first: int) -> Iterator[tuple[int, int]]:
    """Rows of a block, from one on, in parts that are no larger than a block should be."""
    target = DataContext.get_current().target_max_block_size
    size = block.num_rows
    if block.nbytes > target:
        size = max(1, block.num_rows * target // block.nbytes)
    for begin in range(first, block.num_rows, max(size, 1)):
        yield begin, min(begin + size, block.num_rows)
