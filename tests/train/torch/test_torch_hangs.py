"""Hangs of torch's own: collectives that not all ranks call, gradients that never come, a loader that is stuck."""

import re
import time

import pytest
import torch
import torch.distributed as dist
from torch_fits import fit

from paceline import train
from paceline.train import FailureConfig, WorkerGroupError
from paceline.train.torch import prepare_model


@pytest.fixture
def hang(tmp_path):
    """Runs a function that hangs and returns what was said of it."""

    def hang(function, num_workers=2, **options):
        failures = FailureConfig(hang_timeout_s=3.0, hang_action="fail")
        with pytest.raises(WorkerGroupError) as caught:
            fit(tmp_path, function, num_workers, failures=failures, **options)
        return str(caught.value).splitlines()[2].partition("hang: ")[2]

    return hang


def skip_a_collective():
    train.report({"i": 1})
    if dist.get_rank() == 1:
        time.sleep(1000)
    dist.all_reduce(torch.ones(1))


def bring_no_gradients():
    model = prepare_model(torch.nn.Linear(4, 4))
    model(torch.ones(2, 4)).sum().backward()
    train.report({"i": 1})
    loss = model(torch.ones(2, 4)).sum()
    if dist.get_rank() == 1:
        time.sleep(1000)
    loss.backward()


AT = r"at \S+:\d+ in "


@pytest.mark.parametrize(
    ("function", "told"),
    [
        (
            skip_a_collective,
            [
                rf"^rank 1 has been stuck {AT}skip_a_collective \(time\.sleep\) for \d+ s; rank 0 waits for it in a c",
                r"in a collective \(all_reduce\) at",
            ],
        ),
        pytest.param(
            bring_no_gradients,
            ["rank 1 has been stuck at", r"rank 0 waits for it in a collective \(backward\) at"],
            marks=pytest.mark.slow,
        ),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_ranks_that_do_not_meet_are_told_with_their_lines(hang, function, told):
    line = hang(function)
    assert [pattern for pattern in told if not re.search(pattern, line)] == [], line


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU: a rank that waits for its GPU was not checked")
def test_a_rank_that_waits_for_its_gpu_without_end_is_told_with_its_line(hang):
    def function():
        train.report({"i": 1})
        torch.cuda._sleep(int(4e11))  # some minutes
        torch.cuda.synchronize()

    told = hang(function, 1, gpus_per_worker=1)
    assert re.match(r"rank 0 has waited for a GPU \(torch\.cuda\.synchronize\) at \S+:\d+ in function for \d+ s", told)
