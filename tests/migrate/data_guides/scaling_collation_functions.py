"""Scaling out collate functions: tokenize in the dataset, and only unpack in the training loop."""

import numpy as np
import pyarrow as pa
import ray
import torch
from ray.data.collate_fn import ArrowBatchCollateFn
from ray.train import ScalingConfig, get_dataset_shard, report
from ray.train.torch import TorchTrainer


class Tokenize:
    def __call__(self, batch: pa.Table) -> dict[str, np.ndarray]:
        words = [[*text.encode()] for text in batch["text"].to_pylist()]
        tokens = np.zeros((len(words), max(map(len, words))), np.int64)
        for row, word in zip(tokens, words, strict=True):
            row[: len(word)] = word
        return {"tokens": [tokens], "labels": [np.array(batch["label"])]}  # one row for the whole batch


class Unpack(ArrowBatchCollateFn):
    def __call__(self, batch: pa.Table) -> dict[str, torch.Tensor]:
        return {name: torch.tensor(batch[name].to_pylist()[0]) for name in ("tokens", "labels")}


def train_func():
    batches = get_dataset_shard("train").iter_torch_batches(batch_size=1, collate_fn=Unpack())
    report({"sizes": [len(batch["labels"]) for batch in batches]})


texts = ray.data.from_items([{"text": "word " * (n % 7 + 1), "label": n % 2} for n in range(64)])
packed = texts.repartition(target_num_rows_per_block=16).map_batches(Tokenize, batch_size=16, batch_format="pyarrow")
result = TorchTrainer(train_func, datasets={"train": packed}, scaling_config=ScalingConfig(num_workers=2)).fit()
assert result.metrics["sizes"] == [16, 16]
