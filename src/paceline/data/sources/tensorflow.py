"""A `tf.data.Dataset` as one unit: its elements are rows, computed on demand."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Any

from paceline.data.block import Block
from paceline.data.sources.shared_object import StreamSource
from paceline.data.sources.torch import items_to_block

_BLOCK_ITEMS = 64


class PortableTFDataset:
    """Pickled as the graph that computes it, as TensorFlow's own data service does."""

    def __init__(self, dataset: Any) -> None:
        self.dataset = dataset

    def __reduce__(self) -> tuple[Any, ...]:
        import tensorflow as tf

        graph = tf.raw_ops.DatasetToGraphV2(input_dataset=tf.data.experimental.to_variant(self.dataset))
        return _rebuild_portable, (graph.numpy(), self.dataset.element_spec)


def _rebuild_portable(graph: bytes, element_spec: Any) -> PortableTFDataset:
    import tensorflow as tf

    variant = tf.raw_ops.DatasetFromGraph(graph_def=graph)
    return PortableTFDataset(tf.data.experimental.from_variant(variant, element_spec))


@dataclass(frozen=True, eq=False)
class TensorFlowSource(StreamSource):
    """The source of `from_tf`."""

    spread: bool = False

    def read(self) -> Iterator[Block]:
        elements = self.dataset.get().dataset.as_numpy_iterator()
        while part := list(islice(elements, _BLOCK_ITEMS)):
            # A dict is always a row, with its keys as columns.
            yield items_to_block(part, self.spread or isinstance(part[0], Mapping))
