"""Working with tensors: of one shape and of several, from functions, to files."""

import numpy as np
import ray
import torch

fixed = ray.data.from_numpy(np.zeros((32, 28, 28), np.uint8))
batch = fixed.take_batch(batch_size=32)
assert batch["data"].shape == (32, 28, 28) and batch["data"].dtype == np.uint8
ragged = ray.data.from_items([{"image": np.ones((n + 1, 2), np.uint8)} for n in range(4)])
images = ragged.take_batch(batch_size=4)["image"]
assert images.shape == (4,) and images.dtype == object
assert [image.shape for image in images] == [(1, 2), (2, 2), (3, 2), (4, 2)] and images[0].dtype == np.uint8


def brighten(rows):
    return {name: np.clip(values + 4, 0, 255) for name, values in rows.items()}


assert ragged.map(brighten).take(1)[0]["image"].tolist() == [[5, 5]]
assert fixed.map_batches(brighten, batch_size="auto").take(1)[0]["data"].max() == 4
lists = fixed.map_batches(lambda batch: {"a": [*batch["data"]], "b": torch.ones(len(batch["data"]), 3)})
assert lists.take_batch(4)["a"].shape == (4, 28, 28) and lists.take_batch(4)["b"].shape == (4, 3)
for form in ("parquet", "numpy", "json"):
    getattr(fixed.limit(4), f"write_{form}")(form, **({"column": "data"} if form == "numpy" else {}))
    assert np.shape(getattr(ray.data, f"read_{form}")(form).take_all()[3]["data"]) == (28, 28), form
