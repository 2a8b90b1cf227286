"""Base classes for a `collate_fn` object: they say which kind of batch it takes."""

from __future__ import annotations

from typing import Any, ClassVar

from paceline.data.block import BatchFormat, Block


class CollateFn:
    """Makes what a train function gets out of a batch, in `__call__`."""

    batch_format: ClassVar[BatchFormat] = "numpy"

    def __call__(self, batch: Any) -> Any:
        raise NotImplementedError(f"{type(self).__name__} has no __call__")


class ArrowBatchCollateFn(CollateFn):
    """Takes a `pyarrow.Table`."""

    batch_format = "pyarrow"


class NumpyBatchCollateFn(CollateFn):
    """Takes a dict of arrays, as a plain function does."""


class PandasBatchCollateFn(CollateFn):
    """Takes a `pandas.DataFrame`."""

    batch_format = "pandas"


def collate_block(block: Block, collate_fn: Any) -> Any:
    return collate_fn(block.to_batch(collate_fn.batch_format if isinstance(collate_fn, CollateFn) else "numpy"))
