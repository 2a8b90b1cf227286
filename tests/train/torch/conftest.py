"""Train functions on real workers, and a stand-in where it matters only what a worker was given."""

from types import SimpleNamespace

import pytest

from paceline._worker import context as worker_context
from paceline.train import RunConfig, ScalingConfig
from paceline.train.torch import TorchConfig, TorchTrainer


@pytest.fixture
def on_each(tmp_path):
    """Runs a function on every worker of a run and returns what it returned, by rank."""

    def on_each(function, num_workers=2, *, gpus_per_worker=0, backend=None):
        def gathering():
            import torch.distributed as dist

            found = [None] * dist.get_world_size()
            dist.all_gather_object(found, function())
            return found

        number = len(list(tmp_path.iterdir()))
        resources = {"resources_per_worker": {"GPU": gpus_per_worker}} if gpus_per_worker else {}
        trainer = TorchTrainer(
            gathering,
            torch_config=TorchConfig(backend=backend),
            scaling_config=ScalingConfig(num_workers=num_workers, use_gpu=gpus_per_worker > 0, **resources),
            run_config=RunConfig(storage_path=str(tmp_path), name=f"run-{number}"),
        )
        return trainer.fit().return_value

    return on_each


@pytest.fixture(scope="session")
def compiler():
    """Torch imports its compiler with the first optimizer of a process, which sets a variable: so not in a test."""
    import torch

    torch.optim.SGD([torch.ones(1)], lr=0.1).zero_grad()


@pytest.fixture
def as_worker():
    """Makes this process look like a worker that was given certain GPUs."""

    num_entered = 0

    def as_worker(*, devices=(), world_size=1):
        nonlocal num_entered
        num_entered += 1
        worker_context.enter(SimpleNamespace(begin=SimpleNamespace(devices=devices, world_size=world_size, rank=0)))

    yield as_worker
    for _ in range(num_entered):
        worker_context.leave()
