"""Iterating over data for TensorFlow and JAX, and datasets of TensorFlow."""

import numpy as np
import pandas as pd
import ray
import tensorflow as tf

ds = ray.data.from_pandas(pd.DataFrame({"length": np.arange(10) / 2, "target": np.arange(10) % 3}))
pairs = [*ds.to_tf(feature_columns="length", label_columns="target", batch_size=4)]
assert [features.shape[0] for features, _ in pairs] == [4, 4, 2] and pairs[0][1].numpy().tolist() == [0, 1, 2, 0]
assert len([*ds.to_tf("length", "target", local_shuffle_buffer_size=5, local_shuffle_seed=1)]) == 10
assert next(iter(ds.iter_tf_batches(batch_size=3)))["length"].dtype == tf.float64
batch = next(iter(ds.iter_jax_batches(batch_size=4)))
assert batch["target"].shape == (4,) and type(batch["target"]).__module__.startswith("jax")
again = ray.data.from_tf(tf.data.Dataset.from_tensor_slices({"x": np.arange(4), "y": np.ones((4, 2))}))
assert again.sum("x") == 6 and again.take(1)[0]["y"].shape == (2,)
