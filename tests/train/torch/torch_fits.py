"""Runs of a function on workers."""

from paceline.train import FailureConfig, RunConfig, ScalingConfig
from paceline.train.torch import TorchTrainer


def fit(path, function, num_workers=2, *, name="run", failures=None, gpus_per_worker=0, **arguments):
    resources = {"resources_per_worker": {"GPU": gpus_per_worker}} if gpus_per_worker else {}
    return TorchTrainer(
        function,
        scaling_config=ScalingConfig(num_workers, use_gpu=gpus_per_worker > 0, **resources),
        run_config=RunConfig(name=name, storage_path=str(path), failure_config=failures or FailureConfig()),
        **arguments,
    ).fit()
