"""Torch datasets: indexed ones a range of items at a time, iterable ones as a whole."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

from paceline.data.block import ITEM, Block, column_of
from paceline.data.planning.plan import Unit
from paceline.data.sources.memory import unit_ranges
from paceline.data.sources.schemas import PlainSource, RowRangeUnit
from paceline.data.sources.shared_object import SharedObject, StreamSource

_UNIT_ITEMS = 256
_MAX_UNITS = 10_000
_MIN_UNITS = 16
_BLOCK_ITEMS = 64


@dataclass(frozen=True, eq=False)
class TorchSource(PlainSource):
    """The source of `from_torch`."""

    name: str
    dataset: SharedObject
    num_items: int | None
    """None: iterable only."""
    spread: bool = False
    """The parts of an item become columns; otherwise the item is one column."""
    num_units: int | None = None

    def units(self) -> Sequence[Unit]:
        if self.num_items is None:
            return TorchStream(self.name, self.dataset, self.spread).units()
        number = self.num_units or min(max(-(-self.num_items // _UNIT_ITEMS), _MIN_UNITS), _MAX_UNITS)
        return [
            TorchRangeUnit(f"{self.name} (items {begin} to {end - 1})", begin, end, None, self.dataset, self.spread)
            for begin, end in unit_ranges(self.num_items, 0, number, 1)
        ]


@dataclass(frozen=True, eq=False)
class TorchRangeUnit(RowRangeUnit):
    dataset: SharedObject
    spread: bool

    def read(self) -> Iterator[Block]:
        dataset = self.dataset.get()
        for first in range(self.begin, self.end, _BLOCK_ITEMS):
            indices = [*range(first, min(first + _BLOCK_ITEMS, self.end))]
            yield items_to_block(_fetch_items(dataset, indices, self.dataset.name), self.spread)


def _fetch_items(dataset: Any, indices: list[int], name: str) -> list[Any]:
    many = getattr(dataset, "__getitems__", None)
    index = indices[0]
    try:
        if callable(many):
            items = list(many(indices))
            if len(items) != len(indices):
                raise ValueError(f"__getitems__ returned {len(items)} items for {len(indices)} indices")
            return items
        items = []
        for index in indices:
            items.append(dataset[index])
        return items
    except Exception as error:
        label = f"items {indices[0]} to {indices[-1]}" if callable(many) else f"item {index}"
        error.add_note(f"{label} of {name}")
        raise


@dataclass(frozen=True, eq=False)
class TorchStream(StreamSource):
    """All items of an iterable."""

    spread: bool

    def read(self) -> Iterator[Block]:
        items = iter(self.dataset.get())
        while part := list(islice(items, _BLOCK_ITEMS)):
            yield items_to_block(part, self.spread)


def items_to_block(items: Sequence[Any], spread: bool) -> Block:
    """Make rows of items. With `spread`, columns are dict keys, named tuple fields, or tuple positions."""
    first = items[0]
    if spread and isinstance(first, Mapping):
        return Block.from_rows(items)
    if spread and isinstance(first, tuple | list):
        names = getattr(first, "_fields", None) or [f"{ITEM}_{place}" for place in range(len(first))]
        odd = next((item for item in items if len(item) != len(names)), None)
        if odd is not None:
            raise ValueError(f"items must have equally many parts to be columns, got {len(names)} and {len(odd)}")
        return Block({name: column_of(values) for name, values in zip(names, zip(*items, strict=True), strict=True)})
    return Block({ITEM: column_of(items)})
