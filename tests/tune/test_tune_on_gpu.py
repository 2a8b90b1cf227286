"""Trials that compute on a real GPU: by halves two at a time, whole ones one after another."""

import os

import pytest
from tuners import make_tuner

from paceline import tune
from paceline._engine.local.devices import this_machine

pytestmark = pytest.mark.skipif(not this_machine().gpus, reason="no GPU: that trials share one was not checked")


def computing(path, num_at_once):
    """A function that computes on its GPU, in the company of so many."""

    def compute(config):
        import time

        import torch

        here = os.path.join(path, str(config["x"]))
        open(here, "w").close()
        while len(os.listdir(path)) < num_at_once:
            time.sleep(0.01)
        found = torch.full((1000,), float(config["x"]), device="cuda").sum().item()
        tune.report({"found": found, "num_seen": torch.cuda.device_count(), "at_once": len(os.listdir(path))})
        if num_at_once == 1:
            os.unlink(here)

    return compute


@pytest.mark.parametrize(("share", "num_at_once"), [(0.5, 2), (len(this_machine().gpus), 1)])
def test_trials_on_a_gpu_are_as_many_as_it_has_shares(tmp_path, share, num_at_once):
    there = tmp_path / "there"
    there.mkdir()
    trainable = tune.with_resources(computing(str(there), num_at_once), {"cpu": 0.1, "gpu": share})
    grid = make_tuner(tmp_path, trainable, {"x": tune.grid_search([1, 2])}).fit()
    assert not grid.errors, grid.errors
    assert [result.metrics["found"] for result in grid] == [1000.0, 2000.0]
    assert {result.metrics["num_seen"] for result in grid} == {max(1, int(share))}
    assert {result.metrics["at_once"] for result in grid} == {num_at_once}
