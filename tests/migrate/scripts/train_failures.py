"""A worker that dies is restarted; what the last one raises is caught by the exceptions of Ray Train's v2 API."""

import os
import tempfile

import ray.train
import torch
from ray.train.torch import TorchTrainer
from ray.train.v2.api.exceptions import TrainingFailedError, WorkerGroupError


def train_func(config):
    start = 0
    checkpoint = ray.train.get_checkpoint()
    if checkpoint:
        with checkpoint.as_directory() as folder:
            start = torch.load(os.path.join(folder, "state.pt"))["epoch"] + 1
    for epoch in range(start, 4):
        if epoch == 2 and not checkpoint:
            os._exit(1)
        assert os.environ["FLAVOR"] == "plain"
        with tempfile.TemporaryDirectory() as folder:
            torch.save({"epoch": epoch}, os.path.join(folder, "state.pt"))
            is_first = ray.train.get_context().get_world_rank() == 0
            saved = ray.train.Checkpoint.from_directory(folder) if is_first else None
            ray.train.report({"epoch": epoch, "start": start}, checkpoint=saved)
    if config["fails"]:
        raise ValueError("at the end")


def make_trainer(name, fails, max_failures):
    return TorchTrainer(
        train_func,
        train_loop_config={"fails": fails},
        scaling_config=ray.train.ScalingConfig(num_workers=2),
        run_config=ray.train.RunConfig(
            name=name,
            failure_config=ray.train.FailureConfig(max_failures=max_failures),
            worker_runtime_env={"env_vars": {"FLAVOR": "plain"}},
        ),
    )


result = make_trainer("dies", fails=False, max_failures=1).fit()
assert (result.metrics["epoch"], result.metrics["start"]) == (3, 2)
try:
    make_trainer("fails", fails=True, max_failures=1).fit()
except WorkerGroupError as error:
    failures = error.worker_failures
assert failures
assert issubclass(WorkerGroupError, TrainingFailedError)
