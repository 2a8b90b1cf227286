"""Over batches: `map_batches` and `add_column`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np

from paceline.data.block import BatchFormat, Block
from paceline.data.transforms.calls import Calls, UserTransform, defined_at

_AT_HAND = 1 << 20
"""So many bytes stay close to the processor while a function goes over them again and again."""
_LEAST_ROWS = 4096
"""Fewer rows at a time would not be worth the call."""

AnyFormat = Literal["default", "numpy", "pandas", "pyarrow"] | None


def format_named(name: AnyFormat) -> BatchFormat:
    """The format that a `batch_format` asks for; None is that of the blocks, Arrow's."""
    if name is None:
        return "pyarrow"
    if name == "default":
        return "numpy"
    if name not in get_args(BatchFormat):
        raise ValueError(f"batch_format must be 'default', 'numpy', 'pandas', 'pyarrow' or None, not {name!r}")
    return name


def batches(blocks: Iterable[Block], batch_size: int | None) -> Iterator[tuple[int, Block]]:
    """Rows in batches of that size, each with the number of its first row; None: as the blocks are."""
    held: list[Block] = []
    num_held = first = 0
    for block in blocks:
        if batch_size is None:
            if block.num_rows:
                yield first, block
            first += block.num_rows
            continue
        while block.num_rows:
            head = block.slice(0, batch_size - num_held)
            block = block.slice(head.num_rows)
            held.append(head)
            num_held += head.num_rows
            if num_held == batch_size:
                yield first, Block.concat(held)
                first += batch_size
                held, num_held = [], 0
    if held:
        yield first, Block.concat(held)


def pieces(block: Block) -> Iterator[tuple[int, Block]]:
    """The rows of a block that may be cut anywhere, in pieces that fit a processor's cache, with their first rows.

    To stack 32 columns of 62,500 numbers takes two and a half times as long in one piece as in eight.
    """
    each = max(_LEAST_ROWS, _AT_HAND * block.num_rows // max(block.nbytes, 1))
    for first in range(0, block.num_rows, each):
        yield first, block.slice(first, first + each)


def batch_of(block: Block, batch_format: BatchFormat, *, writable: bool) -> Any:
    """The rows as the user's function sees them; what it may write to is nobody else's."""
    if batch_format != "numpy":
        return block.to_batch(batch_format)
    seen = block.to_numpy()
    for name, array in seen.items():
        if writable and (array is block.columns[name] or not array.flags.writeable):
            seen[name] = np.array(array)
        elif not writable:
            seen[name] = array.view()
            seen[name].flags.writeable = False
    return seen


@dataclass(frozen=True)
class MapBatches(UserTransform):
    batch_size: int | None = None
    batch_format: BatchFormat = "numpy"
    zero_copy: bool = False

    METHOD = "map_batches"

    def run(self, blocks: Iterator[Block], calls: Calls) -> Iterator[Block]:
        writes = not self.zero_copy

        def results(block: Block) -> Iterator[Any]:
            nonlocal writes
            try:
                given = calls.fn(batch_of(block, self.batch_format, writable=writes))
            except ValueError as error:
                if writes or "read-only" not in str(error):
                    raise
                writes = True  # Nothing was changed, so it can be called again, with a batch of its own.
                given = calls.fn(batch_of(block, self.batch_format, writable=True))
            if isinstance(given, Iterator):
                yield from given
            else:
                yield given

        for first, block in batches(blocks, self.batch_size):
            if self.batch_size is not None or self.call.on_error == "skip":
                for given in calls.over_batch(block, first, results):
                    yield self._block(given)
                continue
            made = [
                self._block(given)
                for offset, piece in pieces(block)
                for given in calls.over_batch(piece, first + offset, results)
            ]
            yield from made if len(made) < 2 else [Block.concat(made)]

    def _block(self, given: Any) -> Block:
        try:
            return Block.from_batch(given)
        except (TypeError, ValueError) as error:
            forgot = "\n\nhint: does the function return its batch?" if given is None else ""
            raise type(error)(f"{self.name} gave what is no batch: {error}{forgot}{defined_at(self.call.fn)}") from None


@dataclass(frozen=True)
class AddColumn(UserTransform):
    """One more column, which a function makes of a batch."""

    column: str
    batch_format: BatchFormat = "pandas"

    METHOD = "add_column"

    @property
    def name(self) -> str:
        return f"add_column({self.column!r}, {self.call.name})"

    @property
    def keeps_rows(self) -> bool:
        return self.call.on_error == "raise"

    def run(self, blocks: Iterator[Block], calls: Calls) -> Iterator[Block]:
        def results(block: Block) -> Iterator[tuple[Block, Any]]:
            yield block, calls.fn(batch_of(block, self.batch_format, writable=True))

        for first, block in batches(blocks, None):
            for part, values in calls.over_batch(block, first, results):
                yield self._with(part, values)

    def _with(self, block: Block, values: Any) -> Block:
        if values is None or isinstance(values, str | bytes | Mapping) or not hasattr(values, "__len__"):
            raise TypeError(
                f"{self.name} must give a value for each row, as an array, a series or a list; "
                f"it gave {type(values).__name__}{defined_at(self.call.fn)}"
            )
        if len(values) != block.num_rows:
            raise ValueError(
                f"{self.name} must give a value for each row: it gave {len(values)} for {block.num_rows} rows"
                f"{defined_at(self.call.fn)}"
            )
        return block.with_column(self.column, values)
