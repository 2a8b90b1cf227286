"""Room for workers that goes in every phase and comes back: the run ends as one of two workers all the time."""

import random
import time
from collections import Counter

import oracle
import pytest
from lives import sweep

from paceline._control.events import WorkerReady
from paceline.testing import At, Faults
from paceline.train import DataParallelTrainer, Result, ScalingConfig
from written_runs import read_events

ELASTIC = {"num_workers": (1, 2), "elastic_resize_monitor_interval_s": 0}
STEPS = 40
PHASES = {
    "restore": Faults().kill(0, ("step", 5)).lose_capacity(1, ("spawn", 2)).kill(1, "restore"),
    "step": Faults().lose_capacity(1, ("report", 4)).kill(1, ("step", 6)),
    "report": Faults().lose_capacity(1, ("report", 4)).kill(1, ("report", 6)),
    "upload": Faults().lose_capacity(1, ("report", 4)).kill(1, At("upload", 6, 2)),
    "commit": Faults().lose_capacity(1, ("report", 4)).kill(1, At("commit", 6, 2)),
}


def list_sizes(path):
    """How many workers each attempt had, those that came as far as their function."""
    sizes = Counter(event.attempt for event in read_events(path, WorkerReady))
    return [sizes[attempt] for attempt in sorted(sizes)]


@pytest.mark.slow
@pytest.mark.parametrize("phase", sweep([(phase,) for phase in PHASES], few=[("step",)]))
def test_a_place_lost_in_any_phase_and_regained(phase, survive, undisturbed):
    faults = PHASES[phase].regain_capacity(2, ("report", 14))
    options = {"scaling": ScalingConfig(**ELASTIC), "config": {"pace_s": 0.01, "every": 2}}
    name = f"worker and its slot lost in {phase}, then regained"
    with survive(name, faults, oracle.paced, steps=STEPS, ranks=(0,), **options) as (path, _):
        rows = oracle.reports(path, 1)
        expected = undisturbed(DataParallelTrainer, oracle.small, STEPS).reports[1]
        assert [row for row in expected if row in rows] == rows, "rank 1, where there was one"
        assert list_sizes(path)[-2:] == [1, 2], "fewer, and as many again"


def slow_alone(step, size):
    """Room is looked for every second, and the run must not be over by then."""
    time.sleep(1.0 if size == 1 and step > 14 else 0.01)


def fit(path, faults, steps):
    from paceline.train.torch import TorchTrainer

    scaling = ScalingConfig(**ELASTIC, global_batch_size=8)
    config = {"before_step": slow_alone}
    trainer = oracle.trainer_of(TorchTrainer, oracle.batched, path, steps, scaling=scaling, config=config)
    return faults.applied_to(trainer).fit()


@pytest.fixture(scope="module")
def fixed(tmp_path_factory):
    return fit(tmp_path_factory.mktemp("fixed"), Faults(), STEPS).metrics_dataframe


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
    with fault_table.trying("resize from 2 to 1 to 2 workers, same global batch") as trial:
        result = fit(tmp_path, faults, STEPS)
        assert faults.unfired(result.path) == []
        assert list_sizes(result.path) == [2, 1, 2]
        curve = Result.from_path(result.path).metrics_dataframe
        assert curve["step"].tolist() == fixed["step"].tolist() == list(range(1, STEPS + 1))
        assert (curve["loss"] - fixed["loss"]).abs().max() < 1e-9
        trial.seconds = oracle.worst_stand(result.path, faults)
