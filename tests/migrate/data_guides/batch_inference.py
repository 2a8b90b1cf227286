"""Batch inference: a model in a class, created once in each process of a pool."""

import os

import numpy as np
import ray
import torch


class TorchPredictor:
    def __init__(self, scale=1.0):
        self.model = torch.nn.Sequential(torch.nn.Linear(100, 1), torch.nn.Sigmoid()).eval()
        torch.nn.init.zeros_(self.model[0].weight)
        torch.nn.init.zeros_(self.model[0].bias)
        self.scale = scale

    def __call__(self, batch: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        assert len(batch["data"]) == 16
        with torch.inference_mode():
            output = self.model(torch.tensor(batch["data"], dtype=torch.float32)).numpy() * self.scale
        return {"output": output, "pid": np.full(len(output), os.getpid())}


predictions = ray.data.from_numpy(np.ones((64, 100), np.float32)).map_batches(
    TorchPredictor,
    fn_constructor_kwargs={"scale": 2.0},
    compute=ray.data.ActorPoolStrategy(size=2),
    batch_size=16,
    num_cpus=0.5,
)
rows = predictions.take_all()
assert len(rows) == 64 and all(row["output"] == [1.0] for row in rows)
assert os.getpid() not in {row["pid"] for row in rows} and len({row["pid"] for row in rows}) <= 2
