"""As many workers as there is room for: fewer when a place is lost, more when there is room again."""

import os

from paceline import train
from paceline.train import ScalingConfig


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
