"""A sampler that learns finds more than chance does, at the same number of trials. All of it is seeded."""

import math
import statistics

import pytest

pytest.importorskip("optuna")

from paceline.tune.search.optuna import OptunaSearch
from paceline.tune.space import domains as tune

TRAINING = {
    "lr": tune.loguniform(1e-6, 1),
    "momentum": tune.uniform(0, 1),
    "layers": tune.randint(1, 11),
    "kind": tune.choice(["a", "b", "c"]),
}


def training(config):
    """Like a training: by far the most depends on the magnitude of one parameter. The least value is 0."""
    return float(
        (math.log10(config["lr"]) + 3) ** 2
        + 4 * (config["momentum"] - 0.8) ** 2
        + 0.1 * abs(config["layers"] - 6)
        + {"a": 0.0, "b": 0.5, "c": 1.0}[config["kind"]]
    )


def least(sampler, seed):
    search = OptunaSearch(TRAINING, "loss", "min", sampler=sampler, seed=seed)
    values = []
    for number in range(40):
        values.append(training(search.suggest(str(number))))
        search.on_trial_complete(str(number), {"loss": values[-1]})
    return min(values)


@pytest.mark.slow
def test_tpe_is_twice_as_near_as_chance_after_forty_trials():
    tpe, random = ([least(sampler, seed) for seed in range(10)] for sampler in ("tpe", "random"))
    assert statistics.median(tpe) < statistics.median(random) / 2
    assert sum(a < b for a, b in zip(tpe, random, strict=True)) >= 9
