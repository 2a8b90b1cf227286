"""Transforming data: rows, batches, classes, groups, async functions and expressions."""

import asyncio

import numpy as np
import pandas as pd
import polars
import pyarrow as pa
import pyarrow.compute as pc
import ray
from ray.data.datatype import DataType
from ray.data.expressions import col, lit, udf


def rows_twice(batch):
    yield batch
    yield batch


def with_polars(table: pa.Table) -> pa.Table:
    return polars.from_arrow(table).with_columns(twice=polars.col("x") * 2).to_arrow()


assert ray.data.range(3).flat_map(lambda row: [row] * 2).sum("id") == 6
gaps = ray.data.from_items([{"x": 1.0}, {"x": None}, {"x": 3.0}])
assert gaps.map_batches(pd.DataFrame.dropna, batch_format="pandas").sum("x") == 4
assert gaps.map_batches(lambda table: pc.drop_null(table), batch_format="pyarrow", batch_size=None).count() == 2
assert gaps.map_batches(rows_twice).count() == 6
assert gaps.map_batches(with_polars, batch_format="pyarrow").sum("twice") == 8


class Predictor:
    def __init__(self, factor):
        self.factor = factor

    def __call__(self, batch: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        batch["output"] = batch["data"].sum(axis=1) * self.factor
        return batch


class Slow:
    async def __call__(self, batch):
        await asyncio.sleep(0)
        return batch


ray.data.DataContext.get_current().execution_options.preserve_order = True
pool, two = ray.data.ActorPoolStrategy(size=2), ray.data.TaskPoolStrategy(size=2)
ones = ray.data.from_numpy(np.ones((32, 100)))
assert ones.map_batches(Predictor, fn_constructor_args=(2,), compute=pool, batch_size=4).sum("output") == 6400
doubled = ray.data.range(10).map_batches(lambda batch: {"id": batch["id"] * 2}, compute=two)
assert doubled.take_all() == [{"id": 2 * n} for n in range(10)]
assert ray.data.range(10).map_batches(Slow).count() == 10


def normalize(group):
    group["x"] = group["x"] - group["x"].mean()
    return group


grouped = ray.data.from_items([{"x": float(n), "label": n % 2} for n in range(6)]).groupby("label")
assert grouped.map_groups(normalize).sum("x") == 0
assert grouped.map_groups(normalize, batch_format="pandas").max("x") == 2


@udf(return_dtype=DataType.int32())
def add_one(values: pa.Array) -> pa.Array:
    return pc.add(values, 1)


names = ray.data.from_items([{"value": 5, "first": "Ada"}, {"value": 10, "first": "Bo"}])
names = names.with_column("more", add_one(col("value")) * 2).with_column("both", col("first").str.upper())
assert names.filter(expr=col("value") > lit(7)).take_all() == [{"value": 10, "first": "Bo", "more": 22, "both": "BO"}]
