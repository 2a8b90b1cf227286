"""Over rows: `map`, `flat_map` and `filter` with a function."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from paceline.data.block import Block
from paceline.data.context import DataContext
from paceline.data.transforms.calls import Calls, UserTransform, defined_at


@dataclass(frozen=True)
class MapRows(UserTransform):
    METHOD = "map"

    @property
    def keeps_rows(self) -> bool:
        return self.call.on_error == "raise"

    def run(self, blocks: Iterator[Block], calls: Calls) -> Iterator[Block]:
        made = _Made()
        for first, block in _counted(blocks):
            fn = calls.fn
            for number, row in enumerate(block.rows(), first):
                for given in calls.over_row(fn, row, number):
                    made.add(_row(given, self))
                    if made.is_full:
                        yield made.block()
            if made.rows:
                yield made.block()


@dataclass(frozen=True)
class FlatMap(UserTransform):
    METHOD = "flat_map"

    def run(self, blocks: Iterator[Block], calls: Calls) -> Iterator[Block]:
        made = _Made()
        for first, block in _counted(blocks):
            fn = _listing(calls.fn)
            for number, row in enumerate(block.rows(), first):
                for given in calls.over_row(fn, row, number):
                    if not isinstance(given, list):
                        raise TypeError(
                            f"{self.name} must give a list of rows, or yield them; it gave {type(given).__name__}"
                            f"{defined_at(self.call.fn)}"
                        )
                    for one in given:
                        made.add(_row(one, self))
                        if made.is_full:
                            yield made.block()
            if made.rows:
                yield made.block()


@dataclass(frozen=True)
class FilterRows(UserTransform):
    METHOD = "filter"

    def run(self, blocks: Iterator[Block], calls: Calls) -> Iterator[Block]:
        for first, block in _counted(blocks):
            fn = calls.fn
            kept = [
                number
                for number, row in enumerate(block.rows())
                for given in calls.over_row(fn, row, first + number)
                if _truth(given, self)
            ]
            yield block if len(kept) == block.num_rows else block.take(kept)


def _counted(blocks: Iterable[Block]) -> Iterator[tuple[int, Block]]:
    """Blocks that have rows, each with the number of its first one."""
    first = 0
    for block in blocks:
        if block.num_rows:
            yield first, block
        first += block.num_rows


def _listing(fn: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """A function whose rows are all there when it returns, so that what fails in a generator fails in the call."""

    def called(row: Any) -> Any:
        given = fn(row)
        if isinstance(given, Iterable) and not isinstance(given, list | str | bytes | Mapping):
            return list(given)
        return given

    return called


def _row(given: Any, transform: UserTransform) -> Mapping[str, Any]:
    if isinstance(given, Mapping):
        return given
    forgot = "\n\nhint: does the function return its row?" if given is None else ""
    raise TypeError(
        f"{transform.name} must give rows as dicts of columns; it gave {type(given).__name__}"
        f"{forgot}{defined_at(transform.call.fn)}"
    )


def _truth(given: Any, transform: UserTransform) -> bool:
    if isinstance(given, bool | np.bool_):
        return bool(given)
    if isinstance(given, np.ndarray) and given.size != 1:
        raise TypeError(
            f"{transform.name} must give True or False for a row; it gave an array of shape {given.shape}"
            f"{defined_at(transform.call.fn)}"
        )
    return bool(given)


class _Made:
    """Rows that a function gave, until they are enough for a block."""

    def __init__(self) -> None:
        self.rows: list[Mapping[str, Any]] = []
        self._nbytes = 0
        self._most = DataContext.get_current().target_max_block_size

    def add(self, row: Mapping[str, Any]) -> None:
        self.rows.append(row)
        self._nbytes += sum(map(_nbytes, row.values()))

    @property
    def is_full(self) -> bool:
        return self._nbytes >= self._most

    def block(self) -> Block:
        rows, self.rows, self._nbytes = self.rows, [], 0
        return Block.from_rows(rows)


def _nbytes(value: Any) -> int:
    if isinstance(value, str | bytes):
        return len(value)
    nbytes = getattr(value, "nbytes", None)
    return nbytes if isinstance(nbytes, int) else 8 * len(value) if isinstance(value, list) else 8
