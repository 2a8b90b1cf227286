"""As many workers as there is room for: fewer when a place is lost, more when there is room again."""

import os

import pytest

from paceline import train
from paceline._engine.base import WorkerResources
from paceline._engine.local.devices import Machine, compute_local_capacity
from paceline.train import Result, ScalingConfig


@pytest.mark.parametrize(
    ("machine", "needs", "bounds", "room"),
    [
        (Machine(4, ()), WorkerResources(1), (1, 8), 4),
        (Machine(4, ()), WorkerResources(2), (1, 8), 2),
        (Machine(1, ()), WorkerResources(1), (2, 8), 2),
        (Machine(8, ("0", "1")), WorkerResources(0, 0.5), (1, 8), 4),
        (Machine(8, ("0",)), WorkerResources(0, 1), (2, 4), 1),
        (Machine(8, ()), WorkerResources(0, 1), (1, 4), 0),
    ],
)
def test_room_is_what_cores_and_gpus_allow(machine, needs, bounds, room):
    assert compute_local_capacity(machine, needs, *bounds) == room


two_cores = pytest.mark.skipif(
    not hasattr(os, "sched_getaffinity") or len(os.sched_getaffinity(0)) < 2, reason="room comes and goes with cores"
)

SCRIPT = """
import os, signal, sys, time
from pathlib import Path
import torch
from torch.utils.data import DataLoader, TensorDataset

from paceline import train
from paceline.train import Checkpoint, RunConfig, ScalingConfig
from paceline.train.torch import TorchTrainer, prepare_data_loader, prepare_model


def function(config):
    torch.manual_seed(0)
    torch.set_default_dtype(torch.float64)
    data = TensorDataset(torch.randn(52, 5), torch.randn(52, 1))
    loader = prepare_data_loader(DataLoader(data, shuffle=True))
    model = torch.nn.Sequential(torch.nn.Linear(5, 16), torch.nn.Tanh(), torch.nn.Linear(16, 1))
    model = prepare_model(model)
    inner = getattr(model, "module", model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    last = train.get_checkpoint()
    step = 0
    if last:
        state = last.to_dict()
        inner.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        loader.load_state_dict(state["loader"])
        step = state["step"]
    size, rank = train.get_context().get_world_size(), train.get_context().get_world_rank()
    while step < 60:
        for x, y in loader:
            loss = torch.nn.functional.mse_loss(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total = loss.detach().clone()
            torch.distributed.all_reduce(total)
            step += 1
            state = {
                "model": inner.state_dict(),
                "optimizer": optimizer.state_dict(),
                "loader": loader.state_dict(),
                "step": step,
            }
            checkpoint = Checkpoint.from_dict(state) if rank == 0 else None
            train.report({"step": step, "loss": total.item() / size, "size": size}, checkpoint=checkpoint)
            if config["resize"] and step == 17 and size == 2 and rank == 1:
                os.sched_setaffinity(config["driver"], {min(os.sched_getaffinity(config["driver"]))})
                os.kill(os.getpid(), signal.SIGKILL)
            if config["resize"] and step == 31 and size == 1:
                os.sched_setaffinity(config["driver"], config["cores"])
                while '"type":"resize_due"' not in Path("runs/resized/journal.jsonl").read_text():
                    time.sleep(0.01)
            if step == 60:
                break


TorchTrainer(
    function,
    train_loop_config={"resize": "resize" in sys.argv, "driver": os.getpid(), "cores": os.sched_getaffinity(0)},
    scaling_config=ScalingConfig((1, 2), global_batch_size=8, elastic_resize_monitor_interval_s=0),
    run_config=RunConfig(name=sys.argv[1], storage_path="runs"),
).fit()
"""


@pytest.mark.slow
@two_cores
def test_a_run_that_shrinks_and_grows_has_the_loss_curve_of_one_that_does_not(run_script, tmp_path):
    fixed = run_script(SCRIPT, "fixed")
    assert fixed.returncode == 0, fixed.stderr
    resized = run_script(SCRIPT, "resized", "resize")
    assert resized.returncode == 0, resized.stderr
    assert "with 1 worker where there were 2" in resized.stderr
    assert "with 2 workers where there were 1" in resized.stderr
    expected = Result.from_path(tmp_path / "runs" / "fixed").metrics_dataframe
    curve = Result.from_path(tmp_path / "runs" / "resized").metrics_dataframe
    assert curve["step"].tolist() == expected["step"].tolist() == list(range(1, 61))
    sizes = curve["size"].tolist()
    alone = sizes.count(1)  # The request to stop may arrive one step after it is in the journal.
    assert sizes == [2] * 17 + [1] * alone + [2] * (43 - alone)
    assert alone >= 15
    assert (curve["loss"] - expected["loss"]).abs().max() < 1e-9
    assert expected["size"].tolist() == [2] * 60


def test_only_numbers_of_workers_that_divide_the_global_batch_are_used():
    assert ScalingConfig((1, 8), global_batch_size=12).sizes == (1, 2, 3, 4, 6)
    assert ScalingConfig((2, 3)).sizes == (2, 3)
    config = ScalingConfig((2, 3))
    assert (config.elasticity_enabled, config.min_workers, config.max_workers) == (True, 2, 3)
    assert config.total_resources == {"CPU": 3.0}
    config = ScalingConfig(4)
    assert (config.elasticity_enabled, config.min_workers, config.max_workers) == (False, 4, 4)


def test_a_run_with_a_range_starts_with_as_many_as_there_are_cores(fit):
    size = fit(lambda: train.get_context().get_world_size(), (1, 3)).return_value
    assert size == min(3, len(os.sched_getaffinity(0)))
