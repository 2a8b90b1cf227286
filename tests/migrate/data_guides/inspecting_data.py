"""Inspecting data: schema, rows, batches of each format, statistics of an execution."""

import numpy as np
import pandas as pd
import pyarrow as pa
import ray

ds = ray.data.from_pandas(pd.DataFrame({"length": [5.1, 4.9, 4.7], "target": [0, 0, 1]}))
schema = ds.schema()
assert "length" in str(schema) and "num_rows=3" in str(ds)
assert schema.names == ["length", "target"] and schema.types == [pa.float64(), pa.int64()]
assert ds.columns() == ["length", "target"] and ds.count() == 3 and ds.size_bytes() > 0
assert ds.take(1) == [{"length": 5.1, "target": 0}] == ds.take_all()[:1]
assert isinstance(ds.take_batch(2)["length"], np.ndarray)
assert ds.take_batch(2, batch_format="pandas").shape == (2, 2)
assert ds.take_batch(batch_size=2, batch_format="pyarrow").column("target").to_pylist() == [0, 0]
images = ray.data.from_numpy(np.zeros((4, 32, 32, 3), np.uint8))
assert images.take_batch(batch_size=2, batch_format="numpy")["data"].shape == (2, 32, 32, 3)
done = ds.map_batches(lambda batch: batch).filter(lambda row: row["target"] == 0)
assert len(done.take_all()) == 2 and "2 rows" in done.stats()
assert isinstance(done.materialize(), ray.data.MaterializedDataset)
