"""A place for trials outside of a search: each is a run with the name that a search would give it."""

import pytest

from paceline.tune.config import RunConfig
from paceline.tune.trainables.trainable_plans import make_trainable_plan


@pytest.fixture
def of_trial(tmp_path):
    def make(number=0, **arguments):
        return RunConfig(name=f"trial_{number:05d}", storage_path=tmp_path / "search", **arguments)

    return make


@pytest.fixture
def run_trial(of_trial):
    """Runs one trial of a trainable."""

    def run(trainable, config=None, number=0, initial=None, **run_config):
        return make_trainable_plan(trainable).make_trainer(config or {}, of_trial(number, **run_config), initial).fit()

    return run
