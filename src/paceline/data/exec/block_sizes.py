"""How large blocks are when they are handed to consumers."""

from __future__ import annotations

from collections.abc import Iterator

from paceline.data.block import Block
from paceline.data.context import DataContext


def split_rows(block: Block, first: int) -> Iterator[tuple[int, int]]:
    """Split the rows of a block, starting at `first`, into ranges no larger than the maximum block size."""
    target = DataContext.get_current().target_max_block_size
    size = block.num_rows
    if block.nbytes > target:
        size = max(1, block.num_rows * target // block.nbytes)
    for begin in range(first, block.num_rows, max(size, 1)):
        yield begin, min(begin + size, block.num_rows)
