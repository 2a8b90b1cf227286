"""Datasets as frames of other libraries: the methods `to_dask`, `to_modin`, `to_daft` and `to_spark` of `Dataset`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from paceline._core.lazy_imports import import_extra
from paceline.data.block import Block
from paceline.data.planning.plan import Unit
from paceline.data.planning.plan_queries import materialize_rows, stream_deliveries

if TYPE_CHECKING:
    from paceline.data.dataset import Dataset


def to_dask(dataset: Dataset, meta: Any = None, verify_meta: bool = True) -> Any:
    """Return a `dask.dataframe.DataFrame` with a partition per unit.

    The rows are computed now and kept, in memory or on disk; Dask must run in this process, with threads or
    `scheduler="synchronous"`. `meta` is an empty frame with the columns and types, if they are not those of the first
    rows; `verify_meta` has each partition compared with it.
    """
    frames = import_extra("dask.dataframe", "to_dask")
    units = materialize_rows(dataset._plan).source.units()
    if not units:
        pandas = import_extra("pandas", "to_dask")
        return frames.from_pandas(pandas.DataFrame() if meta is None else meta, npartitions=1)
    meta = _read_frame(units[0]).iloc[:0] if meta is None else meta
    return frames.from_map(_read_frame, list(units), meta=meta, enforce_metadata=verify_meta)


def _read_frame(unit: Unit) -> Any:
    return Block.concat(unit.read()).to_pandas()


def to_modin(dataset: Dataset) -> Any:
    """Return all rows as a Modin DataFrame, by way of pandas. Tested with a stand-in for Modin."""
    return import_extra("modin.pandas", "to_modin").DataFrame(dataset.to_pandas())


def to_daft(dataset: Dataset) -> Any:
    """Return all rows as a Daft DataFrame, by way of Arrow. Tested with a stand-in for Daft."""
    return import_extra("daft", "to_daft").from_arrow(_read_table(dataset))


def to_spark(dataset: Dataset, spark: Any) -> Any:
    """Return all rows as a Spark DataFrame of this session (4.0 or newer), by way of Arrow.

    Tested with a stand-in for the session.
    """
    if not callable(getattr(spark, "createDataFrame", None)):
        raise TypeError(f"spark must be a pyspark.sql.SparkSession, got a {type(spark).__name__}")
    return spark.createDataFrame(_read_table(dataset))


def _read_table(dataset: Dataset) -> Any:
    return Block.concat(delivered.block for delivered in stream_deliveries(dataset._plan)).to_arrow()
