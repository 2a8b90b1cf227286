"""Quickstart: load, transform, consume and save."""

import os

import numpy as np
import ray

with open("flowers.csv", "w") as file:
    file.write("long (cm),wide (cm),kind\n" + "".join(f"{n / 10},{n / 20},{n % 3}\n" for n in range(60)))

ds = ray.data.read_csv("flowers.csv")
ds.show(limit=1)


def add_area(batch: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    batch["area (cm^2)"] = np.round(batch["long (cm)"] * batch["wide (cm)"], 2)
    return batch


with_area = ds.map_batches(add_area, batch_size="auto")
kept = with_area.materialize()
assert isinstance(kept, ray.data.MaterializedDataset)
assert kept.count() == 60 and "area (cm^2)" in str(kept)
batch = with_area.take_batch(batch_size=3)
assert batch["area (cm^2)"].tolist() == [0.0, 0.01, 0.02] and batch["kind"].dtype == np.int64
with_area.repartition(2).write_parquet("flowers")
assert len([name for name in os.listdir("flowers") if name.endswith(".parquet")]) == 2
assert ray.data.read_parquet("flowers").count() == 60
