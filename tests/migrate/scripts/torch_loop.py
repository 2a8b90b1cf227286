"""A torch loop with `prepare_model` and `prepare_data_loader`, by attributes of `ray.train`."""

import os
import tempfile

import ray.train
import ray.train.torch
import torch
from torch.utils.data import DataLoader, TensorDataset


def train_func(config: dict):
    model = ray.train.torch.prepare_model(torch.nn.Linear(4, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=config["lr"])
    x = torch.randn(32, 4)
    loader = ray.train.torch.prepare_data_loader(DataLoader(TensorDataset(x, x.sum(1, keepdim=True)), batch_size=8))
    for epoch in range(config["epochs"]):
        if ray.train.get_context().get_world_size() > 1:
            loader.sampler.set_epoch(epoch)
        for inputs, targets in loader:
            loss = torch.nn.functional.mse_loss(model(inputs), targets)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        with tempfile.TemporaryDirectory() as folder:
            checkpoint = None
            if ray.train.get_context().get_world_rank() == 0:
                torch.save(model.module.state_dict(), os.path.join(folder, "model.pt"))
                checkpoint = ray.train.Checkpoint.from_directory(folder)
            ray.train.report({"epoch": epoch, "loss": loss.item()}, checkpoint=checkpoint)


trainer = ray.train.torch.TorchTrainer(
    train_func,
    train_loop_config={"lr": 0.1, "epochs": 3},
    scaling_config=ray.train.ScalingConfig(num_workers=2, use_gpu=False),
    run_config=ray.train.RunConfig(checkpoint_config=ray.train.CheckpointConfig(num_to_keep=1)),
)
result = trainer.fit()
assert result.metrics["epoch"] == 2
with result.checkpoint.as_directory() as folder:
    assert set(torch.load(os.path.join(folder, "model.pt"))) == {"weight", "bias"}
assert len(result.best_checkpoints) == 1
