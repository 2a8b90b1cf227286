"""Hangs of torch's own: collectives that not all ranks call, gradients that never come, a loader that is stuck."""

import re
import time

import pytest
import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, Dataset

from paceline import train
from paceline.train import FailureConfig, RunConfig, ScalingConfig, WorkerGroupError
from paceline.train.torch import TorchTrainer, prepare_data_loader, prepare_model


@pytest.fixture
def hang(tmp_path):
    """Runs a function that hangs on two ranks and returns what was said of it."""

    def hang(function, timeout_s=1.0):
        trainer = TorchTrainer(
            function,
            scaling_config=ScalingConfig(2),
            run_config=RunConfig(
                name="run",
                storage_path=tmp_path,
                failure_config=FailureConfig(hang_timeout_s=timeout_s, hang_action="fail"),
            ),
        )
        with pytest.raises(WorkerGroupError) as caught:
            trainer.fit()
        return str(caught.value).splitlines()[2].partition("hang: ")[2]

    return hang


def test_a_collective_that_a_rank_skips_in_its_sleep_names_the_sleeper(hang):
    def function():
        train.report({"i": 1})
        if dist.get_rank() == 1:
            time.sleep(1000)
        dist.all_reduce(torch.ones(1))

    told = hang(function)
    assert re.match(
        r"rank 1 has stood at \S+ in function \(time\.sleep\) for \d+ s; rank 0 waits for it in a coll", told
    )
    assert "in a collective (all_reduce) at" in told


def test_collectives_that_do_not_match_are_told_with_both_lines(hang):
    def function():
        train.report({"i": 1})
        if dist.get_rank() == 0:
            dist.all_reduce(torch.ones(1))
        else:
            dist.recv(torch.ones(1), src=0)

    told = hang(function)
    assert "at places that do not match" in told
    assert re.search(r"rank 0 has stood in a collective \(all_reduce\) at \S+:\d+ in function", told)
    assert re.search(r"rank 1 has stood in a collective \(recv\) at \S+:\d+ in function", told)


def test_waiting_for_a_handle_is_waiting_in_a_collective(hang):
    def function():
        train.report({"i": 1})
        if dist.get_rank() == 0:
            handle = dist.all_reduce(torch.ones(1), async_op=True)
            handle.wait()
        train.collective.barrier()

    told = hang(function)
    assert re.search(r"rank 0 has stood in a collective \(handle\.wait\) at \S+:\d+ in function", told)
    assert re.search(r"rank 1 has stood in paceline's barrier or broadcast at \S+:\d+ in function", told)


def test_gradients_that_a_rank_never_brings_are_told_as_a_collective(hang):
    def function():
        model = prepare_model(torch.nn.Linear(4, 4))
        model(torch.ones(2, 4)).sum().backward()
        train.report({"i": 1})
        loss = model(torch.ones(2, 4)).sum()
        if dist.get_rank() == 1:
            time.sleep(1000)
        loss.backward()

    told = hang(function)
    assert "rank 1 has stood at" in told
    assert "rank 0 waits for it in a collective (backward) at" in told


class Stuck(Dataset):
    def __len__(self):
        return 100

    def __getitem__(self, index):
        if index > 20:
            time.sleep(1000)
        return index


@pytest.mark.parametrize("num_workers", [0, 1])
def test_a_loader_that_is_stuck_is_told_as_the_loader(hang, num_workers):
    def function():
        loader = prepare_data_loader(DataLoader(Stuck(), batch_size=4, num_workers=num_workers))
        for batch in loader:
            dist.all_reduce(batch)
            train.report({"i": 1})

    told = hang(function)
    assert re.match(r"ranks 0 and 1 have stood in the data loader at \S+:\d+ in (function|__getitem__) for \d+ s", told)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU: a rank that waits for its GPU was not checked")
def test_a_rank_that_waits_for_its_gpu_without_end_is_told_with_its_line(tmp_path):

    def function():
        train.report({"i": 1})
        torch.cuda._sleep(int(4e11))  # some minutes
        torch.cuda.synchronize()

    trainer = TorchTrainer(
        function,
        scaling_config=ScalingConfig(1, use_gpu=True),
        run_config=RunConfig(
            name="run",
            storage_path=tmp_path,
            failure_config=FailureConfig(hang_timeout_s=1.0, hang_action="fail"),
        ),
    )
    with pytest.raises(WorkerGroupError) as caught:
        trainer.fit()
    told = r"rank 0 has stood for a GPU \(torch\.cuda\.synchronize\) at \S+:\d+ in function for \d+ s"
    assert re.search(told, str(caught.value))
