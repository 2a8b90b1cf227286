"""Saving data: files, how many, partitioned directories, and other libraries."""

import os

import pandas as pd
import ray

frame = pd.DataFrame({"city": ["SF", "SF", "NYC", "NYC"] * 2, "year": [2023, 2024] * 4, "sales": range(8)})
ds = ray.data.from_pandas(frame)
ds.write_csv("few", min_rows_per_file=8)
assert len([name for name in os.listdir("few") if name.endswith(".csv")]) == 1
ds.write_json("json", force_ascii=False)
ds.write_parquet("parquet", compression="zstd")
for copy in (ray.data.read_csv("few"), ray.data.read_json("json"), ray.data.read_parquet("parquet")):
    assert copy.to_pandas().equals(frame)
by_place = ds.repartition(keys=["city", "year"], num_blocks=4)
by_place.write_parquet("sales", partition_cols=["city", "year"], max_rows_per_file=3)
assert sorted(os.listdir("sales")) == ["city=NYC", "city=SF"]
assert sorted(os.listdir("sales/city=SF")) == ["year=2023", "year=2024"]
totals = ray.data.read_parquet("sales").groupby("city").sum("sales").take_all()
assert totals == [{"city": "NYC", "sum(sales)": 18}, {"city": "SF", "sum(sales)": 10}]
assert ds.to_pandas().equals(frame) and len(ds.to_dask().compute()) == 8
ds.write_parquet("sales", partition_cols=["city", "year"], mode="overwrite")
assert ray.data.read_parquet("sales").count() == 8
