"""Preemption and resizing with a GPU: the last checkpoint is made from its memory, and workers come back to it."""

import os
import signal

import pytest
import torch
from torch_fits import fit

from paceline import train
from paceline.train import Checkpoint, PreemptionError
from paceline.train.torch import TorchConfig, get_device

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU: preemption with one was not checked")


def counted(until, at, act):
    """Counts in the GPU's memory, from the last checkpoint on."""

    def function():
        last = train.get_checkpoint()
        count = last.to_dict(map_location=get_device())["count"] if last else torch.zeros(1, device=get_device())
        while count.item() < until:
            count += 1
            if last is None and count.item() == at and train.get_context().get_world_rank() == 0:
                act()
            train.collective.barrier()
            state = {"count": count}
            train.report({"count": count.item()}, checkpoint_on_stop=lambda state=state: Checkpoint.from_dict(state))
        return count.item()

    return function


def test_a_notice_stops_workers_that_share_a_gpu_and_the_next_run_goes_on(tmp_path):
    function = counted(300, 20, lambda: os.kill(os.getpid(), signal.SIGTERM))
    options = {"gpus_per_worker": 0.5, "torch_config": TorchConfig(backend="gloo")}
    with pytest.raises(PreemptionError) as caught:
        fit(tmp_path, function, **options)
    result = caught.value.result
    assert result.checkpoint.to_dict()["count"].item() == result.metrics["count"] >= 20
    assert fit(tmp_path, function, **options).return_value == 300


def test_a_range_of_workers_starts_with_as_many_as_there_are_gpus(tmp_path):
    def function():
        return train.get_context().get_world_size()

    assert fit(tmp_path, function, (1, 64), gpus_per_worker=1).return_value == torch.cuda.device_count()
