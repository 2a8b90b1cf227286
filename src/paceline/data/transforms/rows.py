"""Transforms of rows: `map`, `flat_map` and `filter` with a function."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from paceline.data.block import Block
from paceline.data.context import DataContext
from paceline.data.transforms.user_calls import UnitCalls, UserTransform, definition_note


@dataclass(frozen=True)
class MapRows(UserTransform):
    METHOD = "map"

    @property
    def keeps_rows(self) -> bool:
        return self.call.on_error == "raise"

    def run(self, blocks: Iterator[Block], calls: UnitCalls) -> Iterator[Block]:
        made = _RowBuffer()
        for first, block in _with_first_rows(blocks):
            fn = calls.fn
            for number, row in enumerate(block.rows(), first):
                for given in calls.call_row(fn, row, number):
                    made.add(_check_row(given, self))
                    if made.is_full:
                        yield made.take_block()
            if made.rows:
                yield made.take_block()


@dataclass(frozen=True)
class FlatMap(UserTransform):
    METHOD = "flat_map"

    def run(self, blocks: Iterator[Block], calls: UnitCalls) -> Iterator[Block]:
        made = _RowBuffer()
        for first, block in _with_first_rows(blocks):
            fn = _list_results(calls.fn)
            for number, row in enumerate(block.rows(), first):
                for given in calls.call_row(fn, row, number):
                    if not isinstance(given, list):
                        raise TypeError(
                            f"{self.name} must give a list of rows, or yield them; it gave {type(given).__name__}"
                            f"{definition_note(self.call.fn)}"
                        )
                    for one in given:
                        made.add(_check_row(one, self))
                        if made.is_full:
                            yield made.take_block()
            if made.rows:
                yield made.take_block()


@dataclass(frozen=True)
class FilterRows(UserTransform):
    METHOD = "filter"

    def run(self, blocks: Iterator[Block], calls: UnitCalls) -> Iterator[Block]:
        for first, block in _with_first_rows(blocks):
            fn = calls.fn
            kept = [
                number
                for number, row in enumerate(block.rows())
                for given in calls.call_row(fn, row, first + number)
                if _to_bool(given, self)
            ]
            yield block if len(kept) == block.num_rows else block.take(kept)


def _with_first_rows(blocks: Iterable[Block]) -> Iterator[tuple[int, Block]]:
    """Blocks that have rows, each with the number of its first row."""
    first = 0
    for block in blocks:
        if block.num_rows:
            yield first, block
        first += block.num_rows


def _list_results(fn: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Collect all rows before returning, so that an error in a generator is raised in the call."""

    def call_and_list(row: Any) -> Any:
        given = fn(row)
        if isinstance(given, Iterable) and not isinstance(given, list | str | bytes | Mapping):
            return list(given)
        return given

    return call_and_list


def _check_row(given: Any, transform: UserTransform) -> Mapping[str, Any]:
    if isinstance(given, Mapping):
        return given
    forgot = "\n\nhint: does the function return its row?" if given is None else ""
    raise TypeError(
        f"{transform.name} must give rows as dicts of columns; it gave {type(given).__name__}"
        f"{forgot}{definition_note(transform.call.fn)}"
    )


def _to_bool(given: Any, transform: UserTransform) -> bool:
    if isinstance(given, bool | np.bool_):
        return bool(given)
    if isinstance(given, np.ndarray) and given.size != 1:
        raise TypeError(
            f"{transform.name} must give True or False for a row; it gave an array of shape {given.shape}"
            f"{definition_note(transform.call.fn)}"
        )
    return bool(given)


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
