"""Transforms of batches: `map_batches` and `add_column`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np

from paceline._core.arguments import check_choice
from paceline.data.block import BatchFormat, Block
from paceline.data.transforms.user_calls import UnitCalls, UserTransform

_CACHE_BYTES = 1 << 20
"""Data of this size stays in the processor's cache while a function passes over it repeatedly."""
_MIN_ROWS = 4096
"""Fewer rows at a time would not be worth the call."""

AnyFormat = Literal["default", "numpy", "pandas", "pyarrow"] | None


def parse_batch_format(name: AnyFormat) -> BatchFormat:
    """Parse a `batch_format` argument; None is the format of the blocks, Arrow."""
    check_choice("batch_format", name, ("default", *get_args(BatchFormat), None))
    parsed: BatchFormat = "pyarrow" if name is None else "numpy" if name == "default" else name
    return parsed


def split_batches(blocks: Iterable[Block], batch_size: int | None) -> Iterator[tuple[int, Block]]:
    """Yield batches of `batch_size` rows, each with the number of its first row; None: the blocks as they are."""
    pending: list[Block] = []
    num_pending = first = 0
    for block in blocks:
        if batch_size is None:
            if block.num_rows:
                yield first, block
            first += block.num_rows
            continue
        while block.num_rows:
            head = block.slice(0, batch_size - num_pending)
            block = block.slice(head.num_rows)
            pending.append(head)
            num_pending += head.num_rows
            if num_pending == batch_size:
                yield first, Block.concat(pending)
                first += batch_size
                pending, num_pending = [], 0
    if pending:
        yield first, Block.concat(pending)


def split_for_cache(block: Block) -> Iterator[tuple[int, Block]]:
    """Split a block into pieces that fit the processor's cache, each with its first row. Any cut must be allowed.

    Stacking 32 columns of 62,500 numbers takes 2.5 times as long in one piece as in eight.
    """
    each = max(_MIN_ROWS, _CACHE_BYTES * block.num_rows // max(block.nbytes, 1))
    for first in range(0, block.num_rows, each):
        yield first, block.slice(first, first + each)


def make_batch(block: Block, batch_format: BatchFormat, *, writable: bool) -> Any:
    """Return the rows as the user's function sees them; a writable batch is not shared with anybody."""
    if batch_format != "numpy":
        return block.to_batch(batch_format)
    batch = block.to_numpy()
    for name, array in batch.items():
        if writable and (array is block.columns[name] or not array.flags.writeable):
            batch[name] = np.array(array)
        elif not writable:
            batch[name] = array.view()
            batch[name].flags.writeable = False
    return batch


@dataclass(frozen=True)
class MapBatches(UserTransform):
    batch_size: int | None = None
    batch_format: BatchFormat = "numpy"
    zero_copy: bool = False

    METHOD = "map_batches"

    def run(self, blocks: Iterator[Block], calls: UnitCalls) -> Iterator[Block]:
        writes = not self.zero_copy

        def results(block: Block) -> Iterator[Any]:
            nonlocal writes
            try:
                result = calls.fn(make_batch(block, self.batch_format, writable=writes))
            except ValueError as error:
                if writes or "read-only" not in str(error):
                    raise
                writes = True  # Nothing was changed, so it can be called again, with its own batch.
                result = calls.fn(make_batch(block, self.batch_format, writable=True))
            if isinstance(result, Iterator):
                yield from result
            else:
                yield result

        for first, block in split_batches(blocks, self.batch_size):
            if self.batch_size is not None or self.call.on_error == "skip":
                for result in calls.call_batch(block, first, results):
                    yield self._to_block(result)
                continue
            converted = [
                self._to_block(result)
                for offset, piece in split_for_cache(block)
                for result in calls.call_batch(piece, first + offset, results)
            ]
            yield from converted if len(converted) < 2 else [Block.concat(converted)]

    def _to_block(self, result: Any) -> Block:
        try:
            return Block.from_batch(result)
        except (TypeError, ValueError) as error:
            hint = "\n\nhint: does the function return its batch?" if result is None else ""
            raise self.result_error(f"a batch: {error}{hint}", type(error)) from None


@dataclass(frozen=True)
class AddColumn(UserTransform):
    """Adds a column that a function computes from a batch."""

    column: str
    batch_format: BatchFormat = "pandas"

    METHOD = "add_column"

    @property
    def name(self) -> str:
        return f"add_column({self.column!r}, {self.call.name})"

    @property
    def keeps_rows(self) -> bool:
        return self.call.on_error == "raise"

    def run(self, blocks: Iterator[Block], calls: UnitCalls) -> Iterator[Block]:
        def results(block: Block) -> Iterator[tuple[Block, Any]]:
            yield block, calls.fn(make_batch(block, self.batch_format, writable=True))

        for first, block in split_batches(blocks, None):
            for part, values in calls.call_batch(block, first, results):
                yield self._with_values(part, values)

    def _with_values(self, block: Block, values: Any) -> Block:
        if values is None or isinstance(values, str | bytes | Mapping) or not hasattr(values, "__len__"):
            expected = "a value for each row, as an array, a series or a list"
            raise self.result_error(f"{expected}, got {type(values).__name__}")
        if len(values) != block.num_rows:
            raise self.result_error(f"a value for each of {block.num_rows} rows, got {len(values)}", ValueError)
        return block.with_column(self.column, values)
