"""Room for workers that goes in every phase and comes back: the run ends as one of two workers all the time."""

import random
from pathlib import Path

import oracle
import pytest

from paceline._control import journal
from paceline._control.events import WorkerReady
from paceline._storage.layout import Layout
from paceline.testing import At, Faults
from paceline.train import DataParallelTrainer, Result, ScalingConfig

ELASTIC = {"num_workers": (1, 2), "elastic_resize_monitor_interval_s": 0}
STEPS = 40
CONFIG = {"pace_s": 0.01, "pace_alone_s": 0.1, "every": 2}
"""Alone it is slow: room is looked for every second, and the run must not be over by then."""
PHASES = {
    "restore": Faults().kill(0, ("step", 5)).lose_capacity(1, ("spawn", 2)).kill(1, "restore"),
    "step": Faults().lose_capacity(1, ("report", 4)).kill(1, ("step", 6)),
    "report": Faults().lose_capacity(1, ("report", 4)).kill(1, ("report", 6)),
    "upload": Faults().lose_capacity(1, ("report", 4)).kill(1, At("upload", 6, 2)),
    "commit": Faults().lose_capacity(1, ("report", 4)).kill(1, At("commit", 6, 2)),
}


def sizes(path):
    """How many workers each attempt had, those that came as far as their function."""
    ready = [event for event in journal.read(Layout(Path(path)).journal) if isinstance(event, WorkerReady)]
    return [sum(event.attempt == attempt for event in ready) for attempt in sorted({event.attempt for event in ready})]


def survive(phase, tmp_path, undisturbed, fault_table):
    expected = undisturbed(DataParallelTrainer, oracle.small, STEPS)
    faults = PHASES[phase].regain_capacity(2, ("report", 14))
    surroundings = oracle.Surroundings()
    with fault_table.trying(f"a worker and its place lost in {phase}, then regained") as trial:
        trainer = oracle.trainer_of(
            DataParallelTrainer, oracle.paced, tmp_path, STEPS, scaling=ScalingConfig(**ELASTIC), config=CONFIG
        )
        result = faults.applied_to(trainer).fit()
        assert faults.unfired(result.path) == []
        surroundings.assert_nothing_is_left()
        oracle.assert_same(result.path, expected, ranks=(0,))
        had = oracle.reports(result.path, 1)
        assert [row for row in expected.reports[1] if row in had] == had, "rank 1, where there was one"
        assert sizes(result.path)[-2:] == [1, 2], "fewer, and as many again"
        trial.seconds = oracle.worst_stand(result.path, faults)


def test_a_place_lost_in_a_step_and_regained(tmp_path, temporary, undisturbed, fault_table):
    survive("step", tmp_path, undisturbed, fault_table)


@pytest.mark.chaos
@pytest.mark.parametrize("phase", PHASES)
def test_a_place_lost_in_any_phase_and_regained(phase, tmp_path, temporary, undisturbed, fault_table):
    survive(phase, tmp_path, undisturbed, fault_table)


def batched(config):
    import time

    import torch
    from torch.utils.data import DataLoader, TensorDataset

    from paceline import train
    from paceline.train import Checkpoint
    from paceline.train.torch import prepare_data_loader, prepare_model

    torch.manual_seed(0)
    torch.set_default_dtype(torch.float64)
    data = TensorDataset(torch.randn(52, 5), torch.randn(52, 1))
    loader = prepare_data_loader(DataLoader(data, shuffle=True))
    model = prepare_model(torch.nn.Sequential(torch.nn.Linear(5, 16), torch.nn.Tanh(), torch.nn.Linear(16, 1)))
    inner = getattr(model, "module", model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    step, last = 0, train.get_checkpoint()
    if last is not None:
        state = last.to_dict()
        inner.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        loader.load_state_dict(state["loader"])
        step = state["step"]
    size = train.get_context().get_world_size()
    while step < config["steps"]:
        for x, y in loader:
            loss = torch.nn.functional.mse_loss(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total = loss.detach().clone()
            torch.distributed.all_reduce(total)
            step += 1
            time.sleep(config["pace_s"] if size > 1 else config["pace_alone_s"])
            state = {"model": inner.state_dict(), "optimizer": optimizer.state_dict(), "loader": loader.state_dict()}
            checkpoint = Checkpoint.from_dict({**state, "step": step})
            train.report({"step": step, "loss": total.item() / size}, checkpoint=checkpoint)
            if step == config["steps"]:
                break


def fitted(path, faults, steps):
    from paceline.train.torch import TorchTrainer

    scaling = ScalingConfig(**ELASTIC, global_batch_size=8)
    trainer = oracle.trainer_of(TorchTrainer, batched, path, steps, scaling=scaling, config=CONFIG)
    return faults.applied_to(trainer).fit()


@pytest.fixture(scope="module")
def fixed(tmp_path_factory, _functions_travel_by_value):
    return fitted(tmp_path_factory.mktemp("fixed"), Faults(), STEPS).metrics_dataframe


@pytest.mark.chaos
@pytest.mark.seeds(5, few=0)
def test_the_loss_curve_is_that_of_the_fixed_run_whenever_the_places_go_and_come(
    tmp_path, temporary, seed, fixed, fault_table
):
    dice = random.Random(f"resizes {seed}")
    goes, comes = dice.randint(2, 12), dice.randint(16, 24)
    phase = dice.choice(("step", "report", "upload", "collective"))
    number = 2 * goes + 5 if phase == "collective" else goes + 2  # Each step has two.
    at = At(phase, number, delay_s=dice.choice((0, 0.002)))
    faults = Faults(seed=seed).lose_capacity(1, ("report", goes)).kill(1, at).regain_capacity(2, ("report", comes))
    with fault_table.trying("2 to 1 to 2 workers, same global batch") as trial:
        result = fitted(tmp_path, faults, STEPS)
        assert faults.unfired(result.path) == []
        assert sizes(result.path) == [2, 1, 2]
        curve = Result.from_path(result.path).metrics_dataframe
        assert curve["step"].tolist() == fixed["step"].tolist() == list(range(1, STEPS + 1))
        assert (curve["loss"] - fixed["loss"]).abs().max() < 1e-9
        trial.seconds = oracle.worst_stand(result.path, faults)
