"""Libraries that a trial's function uses are found without running it."""

import functools

import numpy as np
import pytest
import torch
from torch import nn
from tuners import make_tuner

from paceline import tune
from paceline.tune.trainables.trainable_plans import find_preloads


def uses_a_part(config):
    return nn.Linear(1, 1)


def imports_within(config):
    import pandas

    return pandas


class Stepped:
    def step(self):
        return uses_a_part({})


def calls_itself(config):
    return calls_itself(uses_a_part(config))


def test_libraries_are_found_wherever_a_function_names_them():
    assert find_preloads(lambda config: config["x"] + 1) == ()
    assert find_preloads(lambda config: torch.zeros(1)) == ("torch",)
    assert find_preloads(uses_a_part) == ("torch",)
    assert find_preloads(imports_within) == ("pandas",)
    assert find_preloads(lambda config: uses_a_part(config)) == ("torch",)
    assert find_preloads(lambda config: [np.zeros(each) for each in range(3)]) == ("numpy",)
    assert find_preloads(Stepped) == ("torch",)
    assert find_preloads(functools.partial(uses_a_part, {})) == ("torch",)
    assert find_preloads(calls_itself) == ("torch",)


@pytest.mark.slow
def test_a_trial_uses_no_more_threads_than_it_has_cores_though_torch_was_imported_before(tmp_path):
    def count_threads(config):
        tune.report({"threads": torch.get_num_threads()})

    results = make_tuner(tmp_path, count_threads).fit()
    assert results[0].metrics["threads"] == 1
