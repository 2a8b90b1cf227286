"""Shuffling data: files, windows of rows, blocks, and all rows, at random or by a key."""

from itertools import pairwise

import numpy as np
import ray
from ray.data import FileShuffleConfig

ray.data.range(40, override_num_blocks=8).write_parquet("numbers")


def read(ds):
    return [row["id"] for row in ds.take_all()]


for moved in (
    ray.data.read_parquet("numbers", shuffle="files"),
    ray.data.read_parquet("numbers", shuffle=FileShuffleConfig(seed=3)),
    ray.data.read_parquet("numbers").randomize_block_order(seed=1),
    ray.data.range(40).random_shuffle(seed=123),
):
    assert read(moved) != [*range(40)] and sorted(read(moved)) == [*range(40)]
permuted = ray.data.range(1000).map_batches(
    lambda table: table.take(np.random.permutation(len(table))), batch_size=1000, batch_format="pyarrow"
)
assert sorted(read(permuted)) == [*range(1000)] != read(permuted)
one, two = (read(ray.data.range(100).random_shuffle(seed=123)) for _ in range(2))
assert one == two
keyed = ray.data.range(100).map(lambda row: {"id": row["id"] % 5}).repartition(keys="id", num_blocks=20)
assert sum(before != after for before, after in pairwise(read(keyed))) == 4
