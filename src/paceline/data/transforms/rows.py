"""Transforms of rows and batches by a user's function, a random sample, and a limit."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np
import xxhash

from paceline._core.arguments import check_choice
from paceline.data.block import BatchFormat, Block, ConcatenatedBlock
from paceline.data.context import DataContext
from paceline.data.order.shuffle import hash_indices
from paceline.data.planning.key_hashes import hash_keys
from paceline.data.planning.plan import Transform, TransformScope
from paceline.data.transforms.async_calls import call_ahead, call_async, run_async
from paceline.data.transforms.user_calls import UnitCalls, UserTransform

_CACHE_BYTES = 1 << 20
"""Data of this size stays in the processor's cache while a function passes over it repeatedly."""
_MIN_ROWS = 4096
"""Fewer rows at a time would not be worth the call."""

AnyFormat = Literal["default", "numpy", "pandas", "pyarrow"] | None


class _CreateRows(UserTransform):
    """Calls a function that returns a row, or with `returns_lists` a list of rows."""

    returns_lists = False
    takes_async = True

    def run(self, blocks: Iterator[Block], calls: UnitCalls) -> Iterator[Block]:
        buffer = _RowBuffer()
        for first, block in split_batches(blocks, None):
            fn = _list_results(calls.fn) if self.returns_lists and not self.call.is_async else calls.fn
            for _, result in calls.call_rows(fn, block.rows(), first):
                for item in self._check_list(result) if self.returns_lists else (result,):
                    buffer.add(_check_row(item, self))
                    if buffer.is_full:
                        yield buffer.take_block()
            if buffer.rows:
                yield buffer.take_block()

    def _check_list(self, result: Any) -> list[Any]:
        if isinstance(result, list):
            return result
        raise self.result_error(f"a list of rows, or yield them, got {type(result).__name__}")


class MapRows(_CreateRows):
    label = "map({0.call.name})"

    @property
    def keeps_rows(self) -> bool:
        return self.call.on_error == "raise"


class FlatMap(_CreateRows):
    label = "flat_map({0.call.name})"
    returns_lists = True


class FilterRows(UserTransform):
    label = "filter({0.call.name})"
    takes_async = True

    def run(self, blocks: Iterator[Block], calls: UnitCalls) -> Iterator[Block]:
        for first, block in split_batches(blocks, None):
            matching = [
                number - first
                for number, result in calls.call_rows(calls.fn, block.rows(), first)
                if _to_bool(result, self)
            ]
            yield block if len(matching) == block.num_rows else block.take(matching)


def _list_results(fn: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Collect all rows before returning, so that an error in a generator is raised in the call."""

    def call_and_list(row: Any) -> Any:
        result = fn(row)
        if isinstance(result, Iterable) and not isinstance(result, list | str | bytes | Mapping):
            return list(result)
        return result

    return call_and_list


def _check_row(result: Any, transform: UserTransform) -> Mapping[str, Any]:
    if isinstance(result, Mapping):
        return result
    hint = "\n\nhint: does the function return its row?" if result is None else ""
    raise transform.result_error(f"rows as dicts, got {type(result).__name__}{hint}")


def _to_bool(result: Any, transform: UserTransform) -> bool:
    if isinstance(result, np.ndarray) and result.size != 1:
        raise transform.result_error(f"True or False for a row, got an array of shape {result.shape}")
    return bool(result)


class _RowBuffer:
    """Collects the rows that a function returned until they fill a block."""

    def __init__(self) -> None:
        self.rows: list[Mapping[str, Any]] = []
        self._nbytes = 0
        self._most = DataContext.get_current().target_max_block_size

    def add(self, row: Mapping[str, Any]) -> None:
        self.rows.append(row)
        self._nbytes += sum(map(_estimate_bytes, row.values()))

    @property
    def is_full(self) -> bool:
        return self._nbytes >= self._most

    def take_block(self) -> Block:
        rows, self.rows, self._nbytes = self.rows, [], 0
        return Block.from_rows(rows)


def _estimate_bytes(value: Any) -> int:
    if isinstance(value, str | bytes):
        return len(value)
    nbytes = getattr(value, "nbytes", None)
    return nbytes if isinstance(nbytes, int) else 8 * len(value) if isinstance(value, list) else 8


@dataclass(frozen=True)
class RandomSample(Transform):
    """Keeps each row with the same probability, by a hash of its number in its unit: the same rows every time."""

    label = "random_sample({0.fraction}, seed={0.seed})"
    fraction: float
    seed: int

    def apply(self, blocks: Iterator[Block], scope: TransformScope) -> Iterator[Block]:
        return self._sample_blocks(blocks, self.seed ^ xxhash.xxh3_64_intdigest(scope.unit.encode()))

    def _sample_blocks(self, blocks: Iterator[Block], seed: int) -> Iterator[Block]:
        first = 0
        for block in blocks:
            keys = hash_indices(np.arange(first, first + block.num_rows), seed)
            first += block.num_rows
            yield block.take((keys / 2.0**64 < self.fraction).nonzero()[0])


@dataclass(frozen=True)
class SplitRows(Transform):
    """Keeps the rows of one part of a split: by a hash of a column, or of the row's number in its unit."""

    test_size: float
    seed: int
    column: str | None
    is_test: bool

    @property
    def name(self) -> str:
        by = "random" if self.column is None else repr(self.column)
        part = "test" if self.is_test else "train"
        return f"streaming_train_test_split({self.test_size}, {by}, seed={self.seed}): {part}"

    def apply(self, blocks: Iterator[Block], scope: TransformScope) -> Iterator[Block]:
        seed = self.seed ^ xxhash.xxh3_64_intdigest(scope.unit.encode())
        first = 0
        for block in blocks:
            if block.num_rows:
                hashes = (
                    hash_indices(np.arange(first, first + block.num_rows), seed)
                    if self.column is None
                    else hash_keys(block, [self.column], self.seed)[0]
                )
                first += block.num_rows
                block = block.take(np.flatnonzero((hashes / 2.0**64 < self.test_size) == self.is_test))
            yield block


@dataclass(frozen=True)
class LimitRows(Transform):
    """Keeps the first rows of each unit, so that no unit is read further than a global limit can need."""

    label = "limit({0.limit}) of each unit"
    limit: int

    def apply(self, blocks: Iterator[Block], scope: TransformScope) -> Iterator[Block]:
        remaining = self.limit
        for block in blocks:
            yield block.slice(0, remaining)
            remaining -= min(remaining, block.num_rows)
            if not remaining:
                return


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
        elif not writable and array.flags.writeable:
            batch[name] = array.view()
            batch[name].flags.writeable = False
    return batch


@dataclass(frozen=True)
class MapBatches(UserTransform):
    batch_size: int | None = None
    batch_format: BatchFormat = "numpy"
    zero_copy: bool = False
    one_to_one: bool = False
    can_divide: bool = True
    """Whether a batch may be divided, to fit the processor's cache or to find rows that fail: a group may not."""

    label = "map_batches({0.call.name})"
    takes_async = True

    @property
    def keeps_rows(self) -> bool:
        return self.one_to_one and self.call.on_error == "raise"

    def run(self, blocks: Iterator[Block], calls: UnitCalls) -> Iterator[Block]:
        if self.call.is_async:
            yield from self._run_async(blocks, calls)
            return
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
            if self.batch_size is not None or self.call.on_error == "skip" or not self.can_divide:
                yield from self._to_blocks(block, calls.call_batch(block, first, results))
                continue
            # Once for all pieces: converting a column takes as long as stacking 4,000 of its numbers.
            whole = block.with_numpy_numbers() if self.batch_format == "numpy" else block
            pieces = list(split_for_cache(whole))
            converted = self._convert_pieces(pieces, first, calls, results)
            yield from converted if len(pieces) < 2 else [ConcatenatedBlock(converted, block.num_rows)]

    def _convert_pieces(
        self,
        pieces: Iterable[tuple[int, Block]],
        first: int,
        calls: UnitCalls,
        results: Callable[[Block], Iterator[Any]],
    ) -> Iterator[Block]:
        for offset, piece in pieces:
            yield from self._to_blocks(piece, calls.call_batch(piece, first + offset, results))

    def _run_async(self, blocks: Iterator[Block], calls: UnitCalls) -> Iterator[Block]:
        def call(numbered: tuple[int, Block]) -> Any:
            return calls.fn(make_batch(numbered[1], self.batch_format, writable=True))

        batches = split_batches(blocks, self.batch_size)
        for (first, batch), get_result in call_ahead(call, batches, self.call.num_in_flight):

            def results(block: Block, whole: Block = batch, get: Callable[[], Any] = get_result) -> Iterable[Any]:
                # A failing batch is halved, and each half is called by itself.
                result = get() if block is whole else run_async(call_async(call, (0, block)))
                return result if isinstance(result, list) else (result,)

            yield from self._to_blocks(batch, calls.call_batch(batch, first, results))

    def _to_blocks(self, batch: Block, results: Iterable[Any]) -> Iterator[Block]:
        num_rows = 0
        for result in results:
            block = self._to_block(result)
            num_rows += block.num_rows
            yield block
        if self.keeps_rows and num_rows != batch.num_rows:
            expected = f"as many rows as it gets, because of udf_modifying_row_count=False: {batch.num_rows}"
            raise self.result_error(f"{expected}, got {num_rows}", ValueError)

    def _to_block(self, result: Any) -> Block:
        try:
            return Block.from_batch(result)
        except (TypeError, ValueError) as error:
            hint = "\n\nhint: does the function return its batch?" if result is None else ""
            raise self.result_error(f"a batch: {error}{hint}", type(error)) from None


@dataclass(frozen=True)
class AddColumn(UserTransform):
    column: str
    batch_format: BatchFormat = "pandas"

    label = "add_column({0.column!r}, {0.call.name})"

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
