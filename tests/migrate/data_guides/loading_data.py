"""Loading data: files of each kind, compressed files, URIs, other libraries, a database, and made-up rows."""

import os
import sqlite3

import dask.dataframe
import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.fs
import ray
from PIL import Image
from ray.data.expressions import download

frame = pd.DataFrame({"food": ["spam", "ham", "eggs"], "price": [9.34, 5.37, 0.94]})
frame.to_parquet("food.parquet")
frame.to_csv("food.csv.gz", index=False, compression="gzip")
Image.new("RGB", (4, 2), (9, 0, 0)).save("red.png")
with open("lines.txt", "w") as file:
    file.write("one\ntwo\n")

loaded = ray.data.read_parquet("food.parquet")
assert loaded.schema().names == ["food", "price"]
assert loaded.take_all() == ray.data.read_csv("food.csv.gz", arrow_open_stream_args={"compression": "gzip"}).take_all()
assert ray.data.read_images("red.png").take_batch()["image"].shape == (1, 2, 4, 3)
assert [row["text"] for row in ray.data.read_text("lines.txt").iter_rows()] == ["one", "two"]
assert ray.data.read_binary_files("lines.txt", include_paths=True).take(1)[0]["bytes"] == b"one\ntwo\n"
loaded.write_tfrecords("records")
assert np.isclose(ray.data.read_tfrecords("records").sum("price"), 15.65)
paths = ray.data.from_items([{"uri": os.path.abspath("red.png")}])
fetched = paths.with_column("bytes", download("uri", filesystem=pyarrow.fs.LocalFileSystem()))
assert fetched.take(1)[0]["bytes"].startswith(b"\x89PNG")
for same in (
    ray.data.from_pandas(frame),
    ray.data.from_arrow(pa.table(frame)),
    ray.data.from_items(frame.to_dict("records")),
    ray.data.from_dask(dask.dataframe.from_pandas(frame, npartitions=2)),
):
    assert same.take_all() == loaded.take_all()
assert ray.data.from_items([1, 2]).take_all() == [{"item": 1}, {"item": 2}]
assert ray.data.from_numpy(np.arange(3)).sum("data") == 3
assert ray.data.range_tensor(10, shape=(4, 4)).take(1)[0]["data"].shape == (4, 4)
with sqlite3.connect("food.db") as connection:
    frame.to_sql("food", connection, index=False)
connection.close()
cheap = ray.data.read_sql("SELECT food FROM food WHERE price < 6", lambda: sqlite3.connect("food.db"))
assert [row["food"] for row in cheap.take_all()] == ["ham", "eggs"]
