"""Working with PyTorch: batches of tensors, tensors from functions, collate functions, from_torch, a trainer."""

import numpy as np
import pyarrow as pa
import ray
import torch
from ray import train
from ray.data.collate_fn import ArrowBatchCollateFn, NumpyBatchCollateFn
from ray.train import ScalingConfig
from ray.train.torch import TorchTrainer

images = ray.data.from_numpy(np.full((8, 12, 12, 3), 255, np.uint8))
batches = [*images.iter_torch_batches(batch_size=3, drop_last=True, dtypes=torch.float32)]
assert [batch["data"].shape for batch in batches] == [(3, 12, 12, 3)] * 2 and batches[0]["data"].dtype == torch.float32
tensors = images.map(lambda row: {"tensor": torch.tensor(row["data"])})
assert all(isinstance(row["tensor"], np.ndarray) for row in tensors.take_all())
ray.data.from_items([{"tensor": torch.ones(2)}]).write_parquet("tensors")
assert ray.data.read_parquet("tensors").take(1)[0]["tensor"].tolist() == [1.0, 1.0]
squares = torch.utils.data.TensorDataset(torch.arange(4), torch.arange(4) ** 2)
assert ray.data.from_torch(squares).schema().names == ["item"]


class Halves(NumpyBatchCollateFn):
    def __call__(self, batch):
        return torch.as_tensor(batch["data"] / 2)


assert next(iter(images.iter_torch_batches(batch_size=8, collate_fn=Halves()))).max() == 127.5


class Unpack(ArrowBatchCollateFn):
    def __call__(self, batch: pa.Table) -> torch.Tensor:
        return torch.tensor(batch["rows"].to_pylist()[0])


def pack(batch: pa.Table):
    return {"rows": [np.array(batch["id"])]}  # one row for the whole batch


packed = ray.data.range(64).repartition(target_num_rows_per_block=16)
packed = packed.map_batches(pack, batch_size=16, batch_format="pyarrow")
assert [len(rows) for rows in packed.iter_torch_batches(batch_size=1, collate_fn=Unpack())] == [16] * 4


def train_func():
    model = torch.nn.Sequential(torch.nn.Linear(2, 1), torch.nn.Sigmoid())
    num_rows = 0
    for batch in train.get_dataset_shard("train").iter_torch_batches(batch_size=16, dtypes=torch.float32):
        features = torch.stack([batch[name] for name in batch if name != "target"], axis=1)
        torch.nn.functional.binary_cross_entropy(model(features), batch["target"].unsqueeze(1)).backward()
        num_rows += len(features)
    train.report({"rows": num_rows})


rows = ray.data.from_items([{"a": n, "b": n / 2, "target": n % 2} for n in range(64)])
result = TorchTrainer(train_func, datasets={"train": rows}, scaling_config=ScalingConfig(num_workers=2)).fit()
assert result.metrics["rows"] == 32
