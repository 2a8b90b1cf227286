"""Converts datasets of other libraries, and decides what a trainer accepts as a dataset.

The library is identified by the module name of the object's type, so nothing is imported that is not loaded already.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any, Unpack

import numpy as np
import pyarrow as pa

from paceline._core.arguments import check_bool, check_int, with_options
from paceline.data.block import Block
from paceline.data.dataset import Dataset
from paceline.data.planning.plan import Read
from paceline.data.read import from_arrow, from_items, from_numpy, from_pandas
from paceline.data.sources.frameworks import (
    DaskSource,
    HuggingFaceSource,
    PortableTFDataset,
    TableStreamSource,
    TensorFlowSource,
    TorchSource,
)
from paceline.data.sources.memory import MemorySource
from paceline.data.sources.shared_object import SharedObject
from paceline.data.task_options import UnitOptions, parse_num_units

_ACCEPTED = (
    "a paceline.data.Dataset, a torch Dataset, a tf.data.Dataset, a Hugging Face or ray.data Dataset, a pandas or "
    "polars frame, a pyarrow.Table, an array, a dict of arrays, or a list of rows"
)


@with_options(UnitOptions)
def from_torch(dataset: Any, local_read: bool = False, **options: Unpack[UnitOptions]) -> Dataset:
    """Create a dataset with one row per item of a torch dataset, in the column `item`.

    A map-style dataset (`__getitem__` and `__len__`) is read by several processes, each with a range of items; an
    iterable one by a single process. It is pickled immediately, so it must not hold open files or similar.
    `local_read` is for a cluster of Ray, and has no effect here.
    """
    check_bool("local_read", local_read)
    return _from_torch(dataset, spread=False, number=parse_num_units(options))


def from_tf(dataset: Any) -> Dataset:
    """Create a dataset with one row per element of a `tf.data.Dataset`.

    Dict keys become columns; other elements go into the column `item`. One process computes the elements on demand, in
    the dataset's own order.
    """
    if not callable(getattr(dataset, "as_numpy_iterator", None)):
        raise TypeError(f"dataset must be a tf.data.Dataset, got a {_type_name(dataset)}")
    return _from_tf(dataset, spread=False)


@with_options(UnitOptions)
def from_huggingface(dataset: Any, **options: Unpack[UnitOptions]) -> Dataset:
    """Create a dataset from a Hugging Face dataset, as stored in its Arrow table: images, for example, stay encoded.

    A format set on it is ignored. A streaming dataset (`IterableDataset`) is read by one process, on demand.
    """
    num_units = parse_num_units(options)
    if isinstance(dataset, Mapping):
        splits = ", ".join(map(repr, dataset)) or "none"
        raise TypeError(
            f"dataset must be one split, got a {_type_name(dataset)} with the splits {splits}\n\n"
            f"hint: from_huggingface(dataset[{next(iter(dataset), 'train')!r}])"
        )
    if not callable(getattr(dataset, "with_format", None)):
        raise TypeError(f"dataset must be a datasets.Dataset or datasets.IterableDataset, got a {_type_name(dataset)}")
    form = getattr(dataset, "format", None)
    if isinstance(form, Mapping) and form.get("type") == "custom":
        raise ValueError(
            "dataset must have no function of set_transform or with_transform\n\n"
            "hint: pass dataset.with_format(None), and the function to map_batches"
        )
    if not hasattr(dataset, "__getitem__") or not hasattr(dataset, "__len__"):
        return Dataset(
            Read(TableStreamSource("from_huggingface(streaming)", SharedObject(dataset, "the dataset"), "huggingface"))
        )
    rows = len(dataset)
    size = int(getattr(getattr(dataset, "data", None), "nbytes", 0) or 0)
    shared = SharedObject(dataset.with_format("arrow"), "the dataset")
    return Dataset(Read(HuggingFaceSource(f"from_huggingface({rows} rows)", shared, rows, size, num_units)))


def from_polars(df: Any, *, override_num_blocks: int | None = None) -> Dataset:
    """Create a dataset from a `polars.DataFrame`, or a `LazyFrame`, which one process collects on demand."""
    check_int("override_num_blocks", override_num_blocks, at_least=1, optional=True)
    if _is_from_module(df, "polars", "LazyFrame"):
        return Dataset(Read(TableStreamSource("from_polars(LazyFrame)", SharedObject(df, "the LazyFrame"), "polars")))
    if not _is_from_module(df, "polars", "DataFrame"):
        raise TypeError(f"df must be a polars.DataFrame or a polars.LazyFrame, got a {_type_name(df)}")
    blocks = (Block.from_arrow(df.to_arrow()),)
    return Dataset(Read(MemorySource(f"from_polars({blocks[0].num_rows} rows)", blocks, override_num_blocks)))


def from_blocks(blocks: Any) -> Dataset:
    """Create a dataset from a list of blocks, each a `pyarrow.Table` or a `pandas.DataFrame`."""
    if not isinstance(blocks, list | tuple):
        raise TypeError(f"blocks must be a list of tables or frames, got a {_type_name(blocks)}")
    parts = tuple(Block.from_batch(block) for block in blocks)
    return Dataset(Read(MemorySource(f"from_blocks({sum(part.num_rows for part in parts)} rows)", parts)))


def from_dask(df: Any) -> Dataset:
    """Create a dataset from a `dask.dataframe.DataFrame`. Data processes compute its partitions, which are the units.

    It is pickled immediately, so its graph must not hold open files or similar.
    """
    if not _is_from_module(df, "dask") or not hasattr(df, "to_delayed"):
        raise TypeError(f"df must be a dask.dataframe.DataFrame, got a {_type_name(df)}")
    partitions = tuple(SharedObject(each, "a partition of the Dask frame").pack() for each in df.to_delayed())
    return Dataset(Read(DaskSource(f"from_dask({len(partitions)} partitions)", partitions)))


def from_modin(df: Any) -> Dataset:
    """Create a dataset from a Modin DataFrame, which is first converted to pandas, in memory.

    Modin cannot be installed beside our pandas, so this was tested with a stand-in for its interface, `_to_pandas()`.
    """
    return from_pandas(_call_conversion("from_modin", df, "a modin.pandas.DataFrame", "modin", "_to_pandas"))


def from_daft(df: Any) -> Dataset:
    """Create a dataset from a Daft DataFrame, which is first computed as an Arrow table, in memory.

    Daft cannot be installed beside our pyarrow, so this was tested with a stand-in for its interface, `to_arrow()`.
    """
    return from_arrow(_call_conversion("from_daft", df, "a daft.DataFrame", "daft", "to_arrow"))


def from_spark(df: Any, *, parallelism: int | None = None, override_num_blocks: int | None = None) -> Dataset:
    """Create a dataset from a Spark DataFrame (4.0 or newer), which is first collected as an Arrow table, in memory.

    Spark cannot be installed beside our pandas, so this was tested with a stand-in for its interface, `toArrow()`. For
    rows that do not fit in memory, have Spark write Parquet.
    """
    table = _call_conversion("from_spark", df, "a pyspark.sql.DataFrame", "pyspark", "toArrow")
    options = UnitOptions(parallelism=parallelism or -1, override_num_blocks=override_num_blocks)
    return from_arrow(table, override_num_blocks=parse_num_units(options))


def _call_conversion(function: str, df: Any, expected: str, module: str, method: str) -> Any:
    if not _is_from_module(df, module) or not callable(getattr(df, method, None)):
        raise TypeError(f"{function}: df must be {expected}, got a {_type_name(df)}")
    return getattr(df, method)()


def as_dataset(value: Any, name: str = "dataset") -> Dataset:
    """Convert what a trainer is given as a dataset. `name` is used in messages: `datasets['train']`.

    Dict or tuple items of a torch dataset or `tf.data.Dataset` become columns: by their keys, or `item_0`, `item_1` and
    so on. Other objects are converted by their `from_` function.
    """
    try:
        return _convert_to_dataset(value)
    except (TypeError, ValueError) as error:
        if type(error) not in (TypeError, ValueError):
            raise
        raise type(error)(f"{name}: {error}") from error


def _convert_to_dataset(value: Any) -> Dataset:
    if isinstance(value, Dataset):
        return value
    if _is_from_module(value, "torch.utils.data"):
        if _is_from_module(value, "torch.utils.data.dataloader"):
            raise TypeError(
                "a torch DataLoader has its own batches and processes\n\n"
                "hint: pass loader.dataset, and set the batch size in the train function: "
                "get_dataset_shard('train').iter_torch_batches(batch_size=...)"
            )
        return _from_torch(value, spread=True)
    if _is_from_module(value, "tensorflow") and hasattr(value, "as_numpy_iterator"):
        return _from_tf(value, spread=True)
    if _is_from_module(value, "datasets"):
        return from_huggingface(value)
    if _is_from_module(value, "ray.data"):
        return _from_ray(value)
    if _is_from_module(value, "pandas", "DataFrame"):
        return from_pandas(value)
    if _is_from_module(value, "polars", "DataFrame", "LazyFrame"):
        return from_polars(value)
    if isinstance(value, pa.Table | pa.RecordBatch):
        return from_arrow(value)
    if isinstance(value, np.ndarray):
        return from_numpy(value)
    if isinstance(value, Mapping) and value and all(isinstance(column, np.ndarray) for column in value.values()):
        block = Block(value)
        return Dataset(Read(MemorySource(f"from_numpy({block.num_rows} rows)", (block,))))
    if isinstance(value, list | tuple):
        return from_items(value)
    raise TypeError(f"must be {_ACCEPTED}, got a {_type_name(value)}{_hint(value)}")


def _from_torch(dataset: Any, *, spread: bool, number: int | None = None) -> Dataset:
    kind = type(dataset).__name__
    iterable = any(base.__name__ == "IterableDataset" for base in type(dataset).__mro__)
    indexed = hasattr(dataset, "__getitem__") and hasattr(dataset, "__len__")
    if not iterable and not indexed:
        missing = "__len__" if hasattr(dataset, "__getitem__") else "__getitem__"
        raise TypeError(
            f"a torch dataset must have __getitem__ and __len__, or be an IterableDataset; {_type_name(dataset)} has "
            f"no {missing}"
        )
    shared = SharedObject(dataset, f"the torch dataset {kind}").pack()
    return Dataset(Read(TorchSource(f"from_torch({kind})", shared, None if iterable else len(dataset), spread, number)))


def _from_tf(dataset: Any, *, spread: bool) -> Dataset:
    shared = SharedObject(PortableTFDataset(dataset), "the tf.data.Dataset")
    return Dataset(Read(TensorFlowSource(f"from_tf({type(dataset).__name__})", shared, spread)))


def _from_ray(dataset: Any) -> Dataset:
    if not callable(getattr(dataset, "iter_batches", None)):
        raise TypeError(f"must be a ray.data.Dataset, got a {_type_name(dataset)}")
    return Dataset(Read(TableStreamSource("ray.data.Dataset", SharedObject(dataset, "the ray.data.Dataset"), "ray")))


def _is_from_module(value: Any, module: str, *names: str) -> bool:
    """Whether its type or one of its base classes is defined in the module, and has one of the names, if any."""
    bases = (base for base in type(value).__mro__ if not names or base.__name__ in names)
    return any(f"{base.__module__}.".startswith(f"{module}.") for base in bases)


def _type_name(value: Any) -> str:
    module = type(value).__module__.partition(".")[0]
    return type(value).__qualname__ if module == "builtins" else f"{module}.{type(value).__qualname__}"


def _hint(value: Any) -> str:
    if isinstance(value, str | os.PathLike):
        return f"\n\nhint: use paceline.data.read_parquet({os.fspath(value)!r}), or the reader of another format"
    if isinstance(value, Mapping):
        return "\n\nhint: each value of a dict must be a numpy.ndarray with the rows of one column"
    if hasattr(value, "__iter__"):
        return "\n\nhint: use list(...) for a list of rows, or a torch.utils.data.IterableDataset to stream them"
    return ""
