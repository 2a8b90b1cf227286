"""Ray Train with Ray Data. Arguments: directory, `tabular` or `images`, files, epochs."""

import sys
from pathlib import Path

import ray
import torch
from ray import train
from ray.train.torch import TorchTrainer

HERE = str(Path(__file__).resolve().parents[1])
ray.init(runtime_env={"env_vars": {"PYTHONPATH": HERE}}, include_dashboard=False)
sys.path.insert(0, HERE)

from _data import CASES, leave, timed_epoch  # noqa: E402


def train_func(config):
    case = CASES[config["case"]]
    epochs = []
    shard = train.get_dataset_shard("train")
    for _ in range(config["epochs"]):
        torch.distributed.barrier()
        epochs.append(timed_epoch(shard.iter_torch_batches(batch_size=case.batch_size)))
    leave(config["directory"], train.get_context().get_world_rank(), epochs)


directory, name, files, epochs = sys.argv[1:]
rows = ray.data.read_parquet(files, columns=list(CASES[name].columns))
TorchTrainer(
    train_func,
    train_loop_config={"directory": directory, "case": name, "epochs": int(epochs)},
    scaling_config=train.ScalingConfig(num_workers=2),
    run_config=train.RunConfig(name="run", storage_path=directory),
    datasets={"train": rows.map_batches(CASES[name].prepare, batch_format="numpy")},
).fit()
