"""A search over a trainer: the space has the configuration of its loop and its scaling."""

import os
import tempfile

import torch
from ray import train, tune
from ray.train import Checkpoint, CheckpointConfig, RunConfig, ScalingConfig
from ray.train.torch import TorchTrainer, prepare_model
from ray.tune import TuneConfig, Tuner
from ray.tune.schedulers import ASHAScheduler


def train_loop_per_worker(config):
    model = prepare_model(torch.nn.Linear(1, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=config["lr"], momentum=config["optim"]["momentum"])
    x = torch.randn(32, 1)
    for epoch in range(config["epochs"]):
        loss = torch.nn.functional.mse_loss(model(x), 2 * x)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        with tempfile.TemporaryDirectory() as directory:
            checkpoint = None
            if train.get_context().get_world_rank() == 0:
                torch.save(model.state_dict(), os.path.join(directory, "model.pt"))
                checkpoint = Checkpoint.from_directory(directory)
            train.report({"loss": loss.item(), "epoch": epoch}, checkpoint=checkpoint)


trainer = TorchTrainer(
    train_loop_per_worker,
    train_loop_config={"epochs": 2, "lr": 0.1},
    scaling_config=ScalingConfig(num_workers=1, use_gpu=False),
)
tuner = Tuner(
    trainer,
    param_space={
        "train_loop_config": {"lr": tune.grid_search([0.01, 0.1]), "optim": {"momentum": tune.uniform(0.0, 0.9)}},
        "scaling_config": ScalingConfig(num_workers=tune.grid_search([1, 2])),
    },
    tune_config=TuneConfig(metric="loss", mode="min", scheduler=ASHAScheduler(grace_period=1, max_t=2)),
    run_config=RunConfig(
        name="nested", checkpoint_config=CheckpointConfig(num_to_keep=1, checkpoint_score_attribute="loss")
    ),
)
results = tuner.fit()
assert len(results) == 4
assert results.num_errors == 0
best = results.get_best_result(metric="loss", mode="min")
assert best.config["train_loop_config"]["lr"] in (0.01, 0.1)
with best.checkpoint.as_directory() as directory:
    assert any("weight" in name for name in torch.load(os.path.join(directory, "model.pt")))
assert "config/train_loop_config/optim/momentum" in results.get_dataframe().columns
