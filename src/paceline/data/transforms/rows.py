"""Transforms of rows: `map`, `flat_map` and `filter` with a function, a random sample, and a limit."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import xxhash

from paceline.data.block import Block
from paceline.data.context import DataContext
from paceline.data.order.shuffle import hash_indices
from paceline.data.planning.plan import Transform, TransformScope
from paceline.data.transforms.batches import split_batches
from paceline.data.transforms.user_calls import UnitCalls, UserTransform


class _CreateRows(UserTransform):
    """Calls a function that returns a row, or with `returns_lists` a list of rows."""

    returns_lists = False

    def run(self, blocks: Iterator[Block], calls: UnitCalls) -> Iterator[Block]:
        buffer = _RowBuffer()
        for first, block in split_batches(blocks, None):
            fn = _list_results(calls.fn) if self.returns_lists else calls.fn
            for number, row in enumerate(block.rows(), first):
                for result in calls.call_row(fn, row, number):
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
    METHOD = "map"

    @property
    def keeps_rows(self) -> bool:
        return self.call.on_error == "raise"


class FlatMap(_CreateRows):
    METHOD = "flat_map"
    returns_lists = True


class FilterRows(UserTransform):
    METHOD = "filter"

    def run(self, blocks: Iterator[Block], calls: UnitCalls) -> Iterator[Block]:
        for first, block in split_batches(blocks, None):
            fn = calls.fn
            kept = [
                number
                for number, row in enumerate(block.rows())
                for result in calls.call_row(fn, row, first + number)
                if _to_bool(result, self)
            ]
            yield block if len(kept) == block.num_rows else block.take(kept)


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

    fraction: float
    seed: int

    @property
    def name(self) -> str:
        return f"random_sample({self.fraction}, seed={self.seed})"

    def apply(self, blocks: Iterator[Block], scope: TransformScope) -> Iterator[Block]:
        return self._sample_blocks(blocks, self.seed ^ xxhash.xxh3_64_intdigest(scope.unit.encode()))

    def _sample_blocks(self, blocks: Iterator[Block], seed: int) -> Iterator[Block]:
        first = 0
        for block in blocks:
            keys = hash_indices(np.arange(first, first + block.num_rows), seed)
            first += block.num_rows
            yield block.take((keys / 2.0**64 < self.fraction).nonzero()[0])


@dataclass(frozen=True)
class LimitRows(Transform):
    """Keeps the first rows of each unit, so that no unit is read further than a global limit can need."""

    limit: int

    @property
    def name(self) -> str:
        return f"limit({self.limit}) of each unit"

    def apply(self, blocks: Iterator[Block], scope: TransformScope) -> Iterator[Block]:
        remaining = self.limit
        for block in blocks:
            yield block.slice(0, remaining)
            remaining -= min(remaining, block.num_rows)
            if not remaining:
                return
