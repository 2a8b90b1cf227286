"""Iterating over data: rows, batches, local shuffles, and shards for several consumers."""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pandas as pd
import ray

ds = ray.data.from_pandas(pd.DataFrame({"length": np.arange(150) / 10, "target": np.arange(150) % 3}))
assert next(iter(ds.iter_rows())) == {"length": 0.0, "target": 0}
assert [len(batch["target"]) for batch in ds.iter_batches(batch_size=64, batch_format="numpy")] == [64, 64, 22]
assert all(isinstance(batch, pd.DataFrame) for batch in ds.iter_batches(batch_size=50, batch_format="pandas"))
assert len(list(ds.iter_batches(batch_size=64, drop_last=True, prefetch_batches=2))) == 2
shuffled = [*ds.iter_batches(batch_size=50, local_shuffle_buffer_size=100, local_shuffle_seed=1)]
lengths = np.concatenate([batch["length"] for batch in shuffled])
assert lengths.tolist() != sorted(lengths) and sorted(lengths) == ds.to_pandas()["length"].tolist()


def train(shard):
    return [sum(len(batch["target"]) for batch in shard.iter_batches(batch_size=8)) for _ in range(2)]


with ThreadPoolExecutor(4) as workers:
    assert [*workers.map(train, ds.streaming_split(n=4, equal=True))] == [[37, 37]] * 4
