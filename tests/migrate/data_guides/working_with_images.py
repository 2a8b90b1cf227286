"""Working with images: read from files, URIs and records, transform, predict, save."""

import io
import os

import numpy as np
import ray
from PIL import Image
from ray.data.expressions import download

os.makedirs("raw")
for shade in range(6):
    Image.new("RGB", (8, 8), (40 * shade, 0, 0)).save(f"raw/{shade}.png")
ds = ray.data.read_images("raw", include_paths=True)
assert ds.take_batch(6)["image"].shape == (6, 8, 8, 3)
assert ray.data.read_images("raw", size=(4, 4), mode="L").take(1)[0]["image"].shape == (4, 4)


def decode(row):
    return {"image": np.asarray(Image.open(io.BytesIO(row["bytes"]))), "label": row["label"]}


uris = ray.data.from_items([{"uri": os.path.abspath(f"raw/{n}.png"), "label": n} for n in range(6)])
fetched = uris.with_column("bytes", download("uri"))
assert fetched.map(decode).take(2)[1]["image"][0, 0].tolist() == [40, 0, 0]
fetched.drop_columns("uri").write_tfrecords("records")
assert ray.data.read_tfrecords("records").map(decode).take(1)[0]["image"].shape == (8, 8, 3)


class Classifier:
    def __init__(self):
        self.weights = np.arange(3)

    def __call__(self, batch):
        return {"class": (batch["image"].mean(axis=(1, 2)) @ self.weights > 10).astype(int), "path": batch["path"]}


bright = ds.map_batches(lambda batch: {**batch, "image": np.clip(batch["image"], 4, 204)}, batch_size="auto")
predicted = bright.map_batches(Classifier, compute=ray.data.ActorPoolStrategy(size=2), batch_size=4)
assert predicted.sum("class") == 6
bright.write_images("images", column="image", file_format="png")
bright.write_numpy("numpy", column="image")
bright.write_parquet("parquet")
for saved, column in (("images", "image"), ("numpy", "data"), ("parquet", "image")):
    read = getattr(ray.data, f"read_{saved}")
    assert read(saved).take_batch(6)[column][:, 0, 0].max(axis=0).tolist() == [200, 4, 4], saved
