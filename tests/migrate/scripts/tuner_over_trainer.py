"""A search over a `TorchTrainer`, as before Ray 2.4x split them."""

import ray.tune
import torch
from ray import train
from ray.train import RunConfig, ScalingConfig
from ray.train.torch import TorchTrainer, get_device


def train_func(config):
    weight = torch.zeros(1, device=get_device())
    for _ in range(2):
        weight += config["lr"]
        train.report({"loss": float((1 - weight).abs())})


tuner = ray.tune.Tuner(
    TorchTrainer(train_func, scaling_config=ScalingConfig(num_workers=1), run_config=RunConfig(name="inner")),
    param_space={"train_loop_config": {"lr": ray.tune.grid_search([0.1, 0.5])}},
    tune_config=ray.tune.TuneConfig(metric="loss", mode="min", max_concurrent_trials=1),
)
best = tuner.fit().get_best_result()
assert best.config["train_loop_config"]["lr"] == 0.5
assert best.metrics["loss"] == 0
