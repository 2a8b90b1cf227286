"""Train functions on real workers, and a stand-in where it matters only what a worker was given."""

from types import SimpleNamespace

import pytest
from fits import gather
from torch_fits import fit

from paceline._worker import context as worker_context
from paceline.train.torch import TorchConfig


@pytest.fixture
def on_each(tmp_path):
    """Runs a function on every worker of a run and returns what it returned, by rank."""

    def on_each(function, num_workers=2, *, gpus_per_worker=0, backend=None):
        def gathering():
            return gather(function())

        name, config = f"run-{len(list(tmp_path.iterdir()))}", TorchConfig(backend=backend)
        scaling = {"gpus_per_worker": gpus_per_worker}
        return fit(tmp_path, gathering, num_workers, name=name, torch_config=config, **scaling).return_value

    return on_each


@pytest.fixture
def as_worker():
    """Makes this process look like a worker that was given certain GPUs."""

    num_entered = 0

    def as_worker(*, devices=(), world_size=1, rank=0, global_batch_size=None):
        nonlocal num_entered
        num_entered += 1
        begin = SimpleNamespace(devices=devices, world_size=world_size, rank=rank, global_batch_size=global_batch_size)
        worker_context.push_context(SimpleNamespace(begin=begin))

    yield as_worker
    for _ in range(num_entered):
        worker_context.pop_context()
