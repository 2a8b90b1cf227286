"""A `tf.data.Dataset` that has been divided among the workers already."""

from __future__ import annotations

from typing import Any


def prepare_dataset_shard(tf_dataset_shard: Any) -> Any:
    """The same dataset with automatic sharding off, and the next batches fetched ahead.

    For what comes from `get_dataset_shard(...).to_tf(...)`: a strategy would otherwise divide it once more.
    """
    import tensorflow as tf

    if not isinstance(tf_dataset_shard, tf.data.Dataset):
        raise TypeError(
            f"tf_dataset_shard={tf_dataset_shard!r:.200} is not a tf.data.Dataset\n\n"
            "hint: get_dataset_shard(...).to_tf(feature_columns, label_columns) gives one"
        )
    options = tf.data.Options()
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.OFF
    return tf_dataset_shard.with_options(options).prefetch(tf.data.AUTOTUNE)
