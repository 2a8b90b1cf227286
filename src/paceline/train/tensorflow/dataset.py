"""Prepare a `tf.data.Dataset` that is already split among the workers."""

from __future__ import annotations

from typing import Any


def prepare_dataset_shard(tf_dataset_shard: Any) -> Any:
    """Disable automatic sharding and prefetch batches.

    For datasets from `get_dataset_shard(...).to_tf(...)`, which a strategy would otherwise shard again.
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
