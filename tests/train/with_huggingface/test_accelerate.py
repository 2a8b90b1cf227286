"""Accelerate inside a TorchTrainer finds everything by itself: nothing of ours is needed but the trainer."""

import importlib.util
import os
import signal

import pytest
from fits import gather

from paceline import train
from paceline.train import Checkpoint, ScalingConfig
from paceline.train.torch import TorchTrainer

pytestmark = pytest.mark.skipif(not importlib.util.find_spec("accelerate"), reason="accelerate is not installed")

NUM_ROWS = 64


def train_func():
    import torch
    import torch.distributed as dist
    from accelerate import Accelerator
    from torch.utils.data import DataLoader, TensorDataset

    accelerator = Accelerator(gradient_accumulation_steps=2)
    group = dist.group.WORLD
    torch.manual_seed(accelerator.process_index)
    x = torch.randn(NUM_ROWS, 2, generator=torch.Generator().manual_seed(0))
    rows = TensorDataset(x, x @ torch.tensor([1.0, -2.0]), torch.arange(NUM_ROWS))
    model = torch.nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.2)
    loader = DataLoader(rows, batch_size=8, shuffle=True, generator=torch.Generator().manual_seed(0))
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    first_epoch = 0
    if (checkpoint := train.get_checkpoint()) is not None:
        with checkpoint.as_directory() as directory:
            accelerator.load_state(directory)
            first_epoch = torch.load(os.path.join(directory, "epoch.pt")) + 1
    seen, num_steps = [], 0
    for epoch in range(first_epoch, 6):
        seen.clear()
        for inputs, targets, numbers in loader:
            with accelerator.accumulate(model):
                loss = ((model(inputs)[:, 0] - targets) ** 2).mean()
                accelerator.backward(loss)
                num_steps += accelerator.sync_gradients
                optimizer.step()
                optimizer.zero_grad()
            seen += numbers.tolist()
        directory = str(train.staging_directory())
        accelerator.save_state(directory)
        torch.save(epoch, os.path.join(directory, "epoch.pt"))
        mean = accelerator.gather(loss.detach().reshape(1)).mean().item()
        # Every rank brings its random state; the model is rank 0's.
        if not accelerator.is_main_process:
            os.remove(os.path.join(directory, "epoch.pt"))
        train.report({"loss": mean, "epoch": epoch}, checkpoint=Checkpoint.from_directory(directory))
        if (epoch, accelerator.process_index, checkpoint) == (3, 1, None):
            os.kill(os.getpid(), signal.SIGKILL)
    found = {
        "rank": accelerator.process_index,
        "world_size": accelerator.num_processes,
        "device": str(accelerator.device),
        "wrapped": type(model).__name__,
        "same_group": dist.group.WORLD is group,
        "steps": num_steps / (6 - first_epoch),
        "first_epoch": first_epoch,
        "seen": seen,
        "weights": accelerator.unwrap_model(model).weight.tolist(),
    }
    return gather(found), accelerator.gather(torch.tensor([accelerator.process_index])).tolist()


@pytest.fixture(scope="module")
def ended(tmp_path_factory, fit_in):
    return fit_in(tmp_path_factory.mktemp("accelerate"), train_func, max_failures=1, trainer=TorchTrainer)


@pytest.mark.slow
def test_two_ranks_with_one_process_group_divide_the_rows_and_share_gradients(ended):
    ranks, gathered = ended.return_value
    first, second = ranks
    assert [first["rank"], second["rank"]] == gathered == [0, 1]
    found = {(one["world_size"], one["device"], one["wrapped"], one["same_group"]) for one in ranks}
    assert found == {(2, "cpu", "DistributedDataParallel", True)}
    assert sorted(first["seen"] + second["seen"]) == list(range(NUM_ROWS))
    assert first["steps"] == 2, "of four batches in an epoch, two by two"
    assert first["weights"] == second["weights"]


@pytest.mark.slow
def test_it_learns_and_goes_on_after_a_kill_from_the_state_that_was_reported(ended):
    assert ended.return_value[0][0]["first_epoch"] == 4
    assert list(ended.metrics_dataframe["epoch"]) == list(range(6))
    assert ended.metrics["loss"] < 0.02
    assert ended.return_value[0][0]["weights"][0] == pytest.approx([1.0, -2.0], abs=0.2)


def test_an_accelerator_is_on_the_gpu_of_its_worker(fit):
    import torch

    if not torch.cuda.is_available():
        pytest.skip("no GPU: the device that an Accelerator finds there was not checked")

    def found():
        from accelerate import Accelerator

        accelerator = Accelerator()
        return str(accelerator.device), accelerator.num_processes, torch.distributed.get_backend()

    result = fit(found, ScalingConfig(1, use_gpu=True), trainer=TorchTrainer)
    assert result.return_value == ["cuda:0", 1, "nccl"]
