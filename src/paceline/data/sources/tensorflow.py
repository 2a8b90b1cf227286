"""A `tf.data.Dataset`: one unit, whose elements are rows, computed as they are asked for."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

from paceline.data.block import Block, Schema
from paceline.data.expressions import Expr
from paceline.data.source import Unit
from paceline.data.sources.held import Held
from paceline.data.sources.torch import block_of_items

_BLOCK_ITEMS = 64


class Portable:
    """Goes to other processes as the graph that computes it, which is how TensorFlow's own data service sends it."""

    def __init__(self, dataset: Any) -> None:
        self.dataset = dataset

    def __reduce__(self) -> tuple[Any, ...]:
        import tensorflow as tf

        graph = tf.raw_ops.DatasetToGraphV2(input_dataset=tf.data.experimental.to_variant(self.dataset))
        return _rebuilt, (graph.numpy(), self.dataset.element_spec)


def _rebuilt(graph: bytes, element_spec: Any) -> Portable:
    import tensorflow as tf

    variant = tf.raw_ops.DatasetFromGraph(graph_def=graph)
    return Portable(tf.data.experimental.from_variant(variant, element_spec))


@dataclass(frozen=True, eq=False)
class Elements:
    """The source of `from_tf`, and its one unit."""

    name: str
    dataset: Held
    spread: bool = False
    num_rows: int | None = None
    num_bytes: int | None = None

    def units(self) -> Sequence[Unit]:
        return [self]

    def read(self) -> Iterator[Block]:
        elements = self.dataset.get().dataset.as_numpy_iterator()
        while part := list(islice(elements, _BLOCK_ITEMS)):
            # A dict is always a row with its keys for columns.
            yield block_of_items(part, self.spread or isinstance(part[0], Mapping))

    def schema(self) -> Schema | None:
        return None

    def projected(self, columns: Sequence[str]) -> None:
        return None

    def pruned(self, predicate: Expr) -> None:
        return None
