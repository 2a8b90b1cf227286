"""Trains the same with Ray Train. Arguments: a directory, the port of the benchmark, which model."""

import itertools
import json
import sys
from pathlib import Path

import ray
import torch
from ray import train
from ray.train.torch import TorchTrainer, prepare_data_loader, prepare_model
from torch.utils.data import DataLoader

HERE = str(Path(__file__).resolve().parents[1])


def train_func(config):
    from _ddp import dataset, make_model, train_in_turns

    torch.set_num_threads(1)
    model = prepare_model(make_model(config["model"]))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    loader = prepare_data_loader(DataLoader(dataset(config["model"]), batch_size=64, shuffle=True))
    steps = train_in_turns(model, optimizer, itertools.repeat(loader), config["port"])
    path = Path(config["directory"], f"rank_{train.get_context().get_world_rank()}.json")
    path.write_text(json.dumps({"steps": steps, "threads": torch.get_num_threads()}))


ray.init(runtime_env={"env_vars": {"PYTHONPATH": HERE}})
TorchTrainer(
    train_func,
    train_loop_config={"directory": sys.argv[1], "port": int(sys.argv[2]), "model": sys.argv[3]},
    scaling_config=train.ScalingConfig(num_workers=2),
    run_config=train.RunConfig(name="run", storage_path=sys.argv[1]),
).fit()
