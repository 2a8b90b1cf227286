"""As many workers as there is room for: fewer when a place is lost, more when there is room again."""

import os

import pytest

from paceline import train
from paceline._engine.base import WorkerResources
from paceline._engine.local.devices import Machine, compute_local_capacity
from paceline.train import ScalingConfig


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
