"""Datasets of other libraries: torch, TensorFlow, Hugging Face, polars and Ray.

Indexed ones are read a range of rows at a time, all others as a whole, on demand.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, ClassVar, Self

from paceline.data.block import ITEM, Block, column_of
from paceline.data.planning.plan import PlainSource, Unit
from paceline.data.sources.memory import unit_ranges
from paceline.data.sources.schemas import RowRangeUnit, table_to_block
from paceline.data.sources.shared_object import SharedObject

_UNIT_ITEMS = 256
_MIN_UNITS, _MAX_UNITS = 16, 10_000
_BLOCK_ITEMS, _BLOCK_ROWS = 64, 1000


@dataclass(frozen=True, eq=False)
class _StreamSource(PlainSource):
    """Base of sources that are their only unit: an object that is read as a whole."""

    name: str
    dataset: SharedObject
    num_rows: ClassVar[int | None] = None
    num_bytes: ClassVar[int | None] = None

    def units(self) -> Sequence[Self]:
        return [self]


@dataclass(frozen=True, eq=False)
class _ItemStream(_StreamSource):
    spread: bool = False
    """The parts of an item become columns; otherwise the item is one column."""
    spreads_dicts: ClassVar[bool] = False

    def read(self) -> Iterator[Block]:
        items = iter(self.dataset.get())
        while part := list(islice(items, _BLOCK_ITEMS)):
            yield items_to_block(part, self.spread or (self.spreads_dicts and isinstance(part[0], Mapping)))


class TensorFlowSource(_ItemStream):
    """A dict is always a row, with its keys as columns."""

    spreads_dicts = True


class PortableTFDataset:
    """Pickled as the graph that computes it, as TensorFlow's own data service does."""

    def __init__(self, dataset: Any) -> None:
        self.dataset = dataset

    def __iter__(self) -> Iterator[Any]:
        return self.dataset.as_numpy_iterator()  # type: ignore[no-any-return]

    def __reduce__(self) -> tuple[Any, ...]:
        import tensorflow as tf

        graph = tf.raw_ops.DatasetToGraphV2(input_dataset=tf.data.experimental.to_variant(self.dataset))
        return _rebuild_portable, (graph.numpy(), self.dataset.element_spec)


def _rebuild_portable(graph: bytes, element_spec: Any) -> PortableTFDataset:
    import tensorflow as tf

    variant = tf.raw_ops.DatasetFromGraph(graph_def=graph)
    return PortableTFDataset(tf.data.experimental.from_variant(variant, element_spec))


@dataclass(frozen=True, eq=False)
class TorchSource(PlainSource):
    name: str
    dataset: SharedObject
    num_items: int | None
    """None: iterable only."""
    spread: bool = False
    num_units: int | None = None

    def units(self) -> Sequence[Unit]:
        if self.num_items is None:
            return [_ItemStream(self.name, self.dataset, self.spread)]
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


@dataclass(frozen=True, eq=False)
class HuggingFaceSource(PlainSource):
    name: str
    dataset: SharedObject
    """With the format "arrow", so that a range of it is a table."""
    num_rows: int
    num_bytes: int
    num_units: int | None = None

    def units(self) -> Sequence[Unit]:
        each = self.num_bytes // max(self.num_rows, 1)
        return [
            HuggingFaceUnit(f"{self.name} (rows {begin} to {end - 1})", begin, end, (end - begin) * each, self.dataset)
            for begin, end in unit_ranges(self.num_rows, self.num_bytes, self.num_units, _MIN_UNITS)
        ]


@dataclass(frozen=True, eq=False)
class HuggingFaceUnit(RowRangeUnit):
    dataset: SharedObject

    def read(self) -> Iterator[Block]:
        dataset = self.dataset.get()
        for first in range(self.begin, self.end, _BLOCK_ROWS):
            yield table_to_block(dataset[first : min(first + _BLOCK_ROWS, self.end)])


@dataclass(frozen=True, eq=False)
class TableStreamSource(_StreamSource):
    """Any object that yields Arrow tables when iterated as `how` says."""

    how: str

    def read(self) -> Iterator[Block]:
        yield from map(table_to_block, _iterate_tables(self.dataset.get(), self.how))


def _iterate_tables(value: Any, how: str) -> Iterator[Any]:
    match how:
        case "huggingface":
            yield from value.with_format("arrow").iter(batch_size=_BLOCK_ROWS)
        case "ray":
            value.context.execution_options.preserve_order = True  # the saved position is a number of rows
            yield from value.iter_batches(batch_size=_BLOCK_ROWS, batch_format="pyarrow")
        case "polars":
            yield value.collect().to_arrow()
        case _:
            raise AssertionError(how)


@dataclass(frozen=True)
class DaskUnit:
    name: str
    partition: SharedObject
    num_rows: int | None = None
    num_bytes: int | None = None

    def read(self) -> Iterator[Block]:
        yield Block.from_pandas(self.partition.get().compute(scheduler="synchronous"))


@dataclass(frozen=True)
class DaskSource(PlainSource):
    name: str
    partitions: tuple[SharedObject, ...]

    def units(self) -> Sequence[DaskUnit]:
        total = len(self.partitions)
        return [DaskUnit(f"partition {index + 1} of {total}", each) for index, each in enumerate(self.partitions)]
