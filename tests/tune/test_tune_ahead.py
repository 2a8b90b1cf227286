"""Libraries that a trial's function uses are found without running it."""

import functools

import numpy as np
import torch
from torch import nn

from paceline import tune
from paceline.tune.trainables.ahead import used_by


def uses_nothing(config):
    return config["x"] + 1


def uses_a_module(config):
    return torch.zeros(1)


def uses_a_part(config):
    return nn.Linear(1, 1)


def imports_within(config):
    import pandas

    return pandas


def calls_another(config):
    return uses_a_part(config)


def has_a_closure(config):
    return [np.zeros(each) for each in range(3)]


class Stepped:
    def step(self):
        return uses_a_module({})


def test_libraries_are_found_wherever_a_function_names_them():
    assert used_by(uses_nothing) == ()
    assert used_by(uses_a_module) == ("torch",)
    assert used_by(uses_a_part) == ("torch",)
    assert used_by(imports_within) == ("pandas",)
    assert used_by(calls_another) == ("torch",)
    assert used_by(has_a_closure) == ("numpy",)
    assert used_by(Stepped) == ("torch",)
    assert used_by(functools.partial(uses_a_module, {})) == ("torch",)


def test_functions_that_call_one_another_are_looked_at_once():
    def ping(config):
        return pong(config)

    def pong(config):
        return ping(config)

    assert used_by(ping) == ()


def told_threads(config):
    tune.report({"threads": torch.get_num_threads()})


def test_a_trial_uses_no_more_threads_than_it_has_cores_though_torch_was_imported_before(tmp_path):
    results = tune.Tuner(told_threads, run_config=tune.RunConfig(storage_path=tmp_path, name="search")).fit()
    assert results[0].metrics["threads"] == 1
