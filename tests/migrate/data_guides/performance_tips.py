"""Performance tips: blocks of a read, columns of Parquet, small blocks, limits, a fixed order."""

import warnings

import pandas as pd
import ray

frame = pd.DataFrame({"length": range(150), "variety": ["a", "b", "c"] * 50})
frame.to_csv("iris.csv", index=False)
frame.to_parquet("iris.parquet")
ctx = ray.data.DataContext.get_current()
with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    ctx.use_polars_sort = True
    ctx.read_op_min_num_blocks = 4
    ds = ray.data.read_csv(["iris.csv"] * 16, override_num_blocks=16).materialize()
    cheap = ray.data.read_parquet("iris.parquet", num_cpus=0.25)
assert ds.num_blocks() == 16 and ds.count() == 2400
assert cheap.select_columns(["variety"]).schema().names == ["variety"]
assert ray.data.read_parquet("iris.parquet", columns=["length"]).columns() == ["length"]
assert ray.data.range(10, override_num_blocks=10).repartition(1).materialize().num_blocks() == 1
whole = ray.data.range(10, override_num_blocks=1).map_batches(lambda batch: {"n": [len(batch["id"])]}, batch_size=10)
assert whole.take_all() == [{"n": 10}]
assert ray.data.range_tensor(50, shape=(10_000,), override_num_blocks=1).materialize().count() == 50
ctx.execution_options.resource_limits = ctx.execution_options.resource_limits.copy(cpu=1, object_store_memory=10e9)
ctx.execution_options.preserve_order = True
assert ds.sort("length", descending=True).take(1)[0]["length"] == 149
