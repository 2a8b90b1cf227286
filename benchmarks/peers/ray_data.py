"""Ray Train with Ray Data. Arguments: directory, `tabular` or `images`, files, epochs, whether to shuffle (1).

The cluster is configured with two cores for the workers and two for the data: on a machine with two, the workers would
otherwise take both, and no row would be read. Ours shares two cores in the same way.
"""

import os
import sys
from pathlib import Path

import ray
import torch
from ray import train
from ray.train.torch import TorchTrainer

HERE = str(Path(__file__).resolve().parents[1])
# On a busy machine the workers may exceed the default timeout, and Ray would start over.
PATIENT = {"RAY_TRAIN_WORKER_GROUP_START_TIMEOUT_S": "120"}
os.environ.update(PATIENT)
ray.init(num_cpus=4, runtime_env={"env_vars": {"PYTHONPATH": HERE, **PATIENT}}, include_dashboard=False)
sys.path.insert(0, HERE)

from _data import CASES, time_epoch, write_result  # noqa: E402


def train_func(config):
    case = CASES[config["case"]]
    epochs = []
    shard = train.get_dataset_shard("train")
    for _ in range(config["epochs"]):
        torch.distributed.barrier()
        epochs.append(time_epoch(shard.iter_torch_batches(batch_size=case.batch_size)))
    write_result(config["directory"], train.get_context().get_world_rank(), epochs)


directory, name, files, epochs, shuffle = sys.argv[1:]
rows = ray.data.read_parquet(files, columns=list(CASES[name].columns))
if int(shuffle):
    rows = rows.random_shuffle()
TorchTrainer(
    train_func,
    train_loop_config={"directory": directory, "case": name, "epochs": int(epochs)},
    scaling_config=train.ScalingConfig(num_workers=2),
    run_config=train.RunConfig(name="run", storage_path=directory),
    datasets={"train": rows.map_batches(CASES[name].prepare, batch_format="numpy")},
).fit()
