"""Datasets of other libraries as ours, and what a trainer takes for a dataset.

Which library something is of is told by the name of its type's module, so none is imported that is not there already.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import numpy as np
import pyarrow as pa

from paceline.data.arguments import check_common
from paceline.data.block import Block
from paceline.data.dataset import Dataset
from paceline.data.plan import Read
from paceline.data.read import from_arrow, from_items, from_numpy, from_pandas
from paceline.data.sources.held import Held
from paceline.data.sources.huggingface import ArrowRows, Tables
from paceline.data.sources.memory import Memory
from paceline.data.sources.tensorflow import Elements, Portable
from paceline.data.sources.torch import TorchItems

_ACCEPTED = (
    "a paceline.data.Dataset, a torch Dataset, a tf.data.Dataset, a Hugging Face or ray.data Dataset, a pandas or "
    "polars frame, a pyarrow.Table, an array, a dict of arrays, or a list of rows"
)


def from_torch(dataset: Any, *, concurrency: int | None = None, override_num_blocks: int | None = None) -> Dataset:
    """A row for each item of a torch dataset, in the column `item`.

    One with an index (`__getitem__` and `__len__`) is read in several processes, a range of items in each; one that is
    iterated, in one. It is pickled at once, so it must not hold open files or the like.
    """
    return _of_torch(dataset, "from_torch", spread=False, concurrency=concurrency, number=override_num_blocks)


def from_tf(dataset: Any) -> Dataset:
    """A row for each element of a `tf.data.Dataset`: dicts have their keys for columns, others are the column `item`.

    Elements are computed by one process as they are asked for, in the dataset's own order.
    """
    if not callable(getattr(dataset, "as_numpy_iterator", None)):
        raise TypeError(f"dataset must be a tf.data.Dataset, not {_kind(dataset)}")
    return _of_tf(dataset, spread=False)


def from_huggingface(
    dataset: Any, *, concurrency: int | None = None, override_num_blocks: int | None = None
) -> Dataset:
    """The rows of a Hugging Face dataset, as its Arrow table has them: images, for one, are encoded.

    A format that was set for it does not matter here. A streaming one (`IterableDataset`) is read by one process, as it
    is asked for.
    """
    check_common(concurrency, override_num_blocks)
    if isinstance(dataset, Mapping):
        splits = ", ".join(map(repr, dataset)) or "none"
        raise TypeError(
            f"dataset is a {_kind(dataset)} with the splits {splits}: choose one of them\n\n"
            f"hint: from_huggingface(dataset[{next(iter(dataset), 'train')!r}])"
        )
    if not callable(getattr(dataset, "with_format", None)):
        raise TypeError(f"dataset must be a datasets.Dataset or datasets.IterableDataset, not {_kind(dataset)}")
    if _has_transform(dataset):
        raise ValueError(
            "dataset has a function of set_transform or with_transform, which is no part of its table\n\n"
            "hint: give the dataset without it (dataset.with_format(None)), and the function to map_batches"
        )
    if not hasattr(dataset, "__getitem__") or not hasattr(dataset, "__len__"):
        return Dataset(Read(Tables("from_huggingface(streaming)", Held(dataset, "the dataset"), "huggingface")))
    rows = len(dataset)
    table = getattr(dataset, "data", None)
    size = int(getattr(table, "nbytes", 0) or 0)
    held = Held(dataset.with_format("arrow"), "the dataset")
    return Dataset(Read(ArrowRows(f"from_huggingface({rows} rows)", held, rows, size, override_num_blocks)))


def _has_transform(dataset: Any) -> bool:
    told = getattr(dataset, "format", None)
    return isinstance(told, Mapping) and told.get("type") == "custom"


def from_polars(df: Any, *, override_num_blocks: int | None = None) -> Dataset:
    """The rows of a `polars.DataFrame`; of a `LazyFrame`, which one process collects when its rows are asked for."""
    check_common(None, override_num_blocks)
    if _is(df, "polars", "LazyFrame"):
        return Dataset(Read(Tables("from_polars(LazyFrame)", Held(df, "the LazyFrame"), "polars")))
    if not _is(df, "polars", "DataFrame"):
        raise TypeError(f"df must be a polars.DataFrame or a polars.LazyFrame, not {_kind(df)}")
    blocks = (Block.from_arrow(df.to_arrow()),)
    return Dataset(Read(Memory(f"from_polars({blocks[0].num_rows} rows)", blocks, override_num_blocks)))


def as_dataset(value: Any, name: str = "dataset") -> Dataset:
    """What is given to a trainer as a dataset; `name` is what it is called in messages: `datasets['train']`.

    Items of a torch dataset, and elements of a `tf.data.Dataset`, that are dicts or tuples become columns: by their
    keys, or `item_0`, `item_1` and so on. All other things are as their `from_` function makes them.
    """
    try:
        return _as_dataset(value)
    except (TypeError, ValueError) as error:
        if type(error) not in (TypeError, ValueError):
            raise
        raise type(error)(f"{name}: {error}") from error


def _as_dataset(value: Any) -> Dataset:
    if isinstance(value, Dataset):
        return value
    if _of_module(value, "torch.utils.data"):
        if _of_module(value, "torch.utils.data.dataloader"):
            raise TypeError(
                "it is a torch DataLoader, which has its own batches and processes\n\n"
                "hint: give its dataset, loader.dataset, and ask for batches in the train function: "
                "get_dataset_shard('train').iter_torch_batches(batch_size=...)"
            )
        return _of_torch(value, "from_torch", spread=True)
    if _of_module(value, "tensorflow") and hasattr(value, "as_numpy_iterator"):
        return _of_tf(value, spread=True)
    if _of_module(value, "datasets"):
        return from_huggingface(value)
    if _of_module(value, "ray.data"):
        return _of_ray(value)
    if _is(value, "pandas", "DataFrame"):
        return from_pandas(value)
    if _is(value, "polars", "DataFrame") or _is(value, "polars", "LazyFrame"):
        return from_polars(value)
    if isinstance(value, pa.Table | pa.RecordBatch):
        return from_arrow(value)
    if isinstance(value, np.ndarray):
        return from_numpy(value)
    if isinstance(value, Mapping) and value and all(isinstance(column, np.ndarray) for column in value.values()):
        block = Block(value)
        return Dataset(Read(Memory(f"from_numpy({block.num_rows} rows)", (block,))))
    if isinstance(value, list | tuple):
        return from_items(value)
    raise TypeError(f"it is a {_kind(value)}, and must be {_ACCEPTED}{_hint(value)}")


def _of_torch(
    dataset: Any, function: str, *, spread: bool, concurrency: int | None = None, number: int | None = None
) -> Dataset:
    check_common(concurrency, number)
    kind = type(dataset).__name__
    iterable = any(base.__name__ == "IterableDataset" for base in type(dataset).__mro__)
    indexed = hasattr(dataset, "__getitem__") and hasattr(dataset, "__len__")
    if not iterable and not indexed:
        missing = "__len__" if hasattr(dataset, "__getitem__") else "__getitem__"
        raise TypeError(
            f"{_kind(dataset)} has no {missing}: a torch dataset has __getitem__ and __len__, or is an IterableDataset"
        )
    held = Held(dataset, f"the torch dataset {kind}").pack()
    return Dataset(Read(TorchItems(f"{function}({kind})", held, None if iterable else len(dataset), spread, number)))


def _of_tf(dataset: Any, *, spread: bool) -> Dataset:
    held = Held(Portable(dataset), "the tf.data.Dataset")
    return Dataset(Read(Elements(f"from_tf({type(dataset).__name__})", held, spread)))


def _of_ray(dataset: Any) -> Dataset:
    if not callable(getattr(dataset, "iter_batches", None)):
        raise TypeError(f"it is a {_kind(dataset)} of Ray, and must be a ray.data.Dataset")
    return Dataset(Read(Tables("ray.data.Dataset", Held(dataset, "the ray.data.Dataset"), "ray")))


def _of_module(value: Any, module: str) -> bool:
    """Whether its type, or one that this is made of, is defined there."""
    return any(f"{base.__module__}.".startswith(f"{module}.") for base in type(value).__mro__)


def _is(value: Any, module: str, name: str) -> bool:
    """The same of a type with this name."""
    return any(base.__name__ == name and f"{base.__module__}.".startswith(f"{module}.") for base in type(value).__mro__)


def _kind(value: Any) -> str:
    module = type(value).__module__.partition(".")[0]
    return type(value).__qualname__ if module == "builtins" else f"{module}.{type(value).__qualname__}"


def _hint(value: Any) -> str:
    if isinstance(value, str | os.PathLike):
        return f"\n\nhint: paceline.data.read_parquet({os.fspath(value)!r}), or the reader of another kind of file"
    if isinstance(value, Mapping):
        return "\n\nhint: each value of a dict must be a numpy.ndarray with the rows of one column"
    if hasattr(value, "__iter__"):
        return "\n\nhint: list(...) of it is a list of rows; a torch.utils.data.IterableDataset is read as it goes"
    return ""
