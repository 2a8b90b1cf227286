"""Samplers that learn find more than chance does, at the same number of trials. All of it is seeded."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping
from typing import Any

import pytest

pytest.importorskip("optuna")

from paceline.tune import space as tune
from paceline.tune.search.optuna import OptunaSearch

TRAINING = {
    "lr": tune.loguniform(1e-6, 1),
    "momentum": tune.uniform(0, 1),
    "layers": tune.randint(1, 11),
    "kind": tune.choice(["a", "b", "c"]),
}


def training(config: Mapping[str, Any]) -> float:
    """Like a training: by far the most depends on the magnitude of one parameter. The least value is 0."""
    return float(
        (math.log10(config["lr"]) + 3) ** 2
        + 4 * (config["momentum"] - 0.8) ** 2
        + 0.1 * abs(config["layers"] - 6)
        + {"a": 0.0, "b": 0.5, "c": 1.0}[config["kind"]]
    )


def least(sampler: str, seed: int, trials: int) -> float:
    search = OptunaSearch(TRAINING, "loss", "min", sampler=sampler, seed=seed)
    values = []
    for number in range(trials):
        values.append(training(search.suggest(str(number))))
        search.on_trial_complete(str(number), {"loss": values[-1]})
    return min(values)


def test_tpe_is_twice_as_near_as_chance_after_forty_trials() -> None:
    tpe, random = ([least(sampler, seed, 40) for seed in range(10)] for sampler in ("tpe", "random"))
    assert statistics.median(tpe) < statistics.median(random) / 2
    assert sum(a < b for a, b in zip(tpe, random, strict=True)) >= 9


ZDT1 = {f"x{index}": tune.uniform(0, 1) for index in range(4)}


def zdt1(config: Mapping[str, Any]) -> tuple[float, float]:
    """Two objectives to minimize; the front is 1 - sqrt(x) where all parameters but the first are 0."""
    first, *others = (config[name] for name in ZDT1)
    rest = 1 + 9 * sum(others) / len(others)
    return first, rest * (1 - math.sqrt(first / rest))


def missing(points: list[tuple[float, float]]) -> float:
    """The area between the points and the true front, below and left of (1.1, 11)."""
    area, height = 0.0, 11.0
    for x, y in sorted(points):
        if y < height:
            area += (1.1 - x) * (height - y)
            height = y
    return 1.1 * 11 - 1 / 3 - area


def front(sampler: str, seed: int, trials: int, function: Callable[[Any], tuple[float, float]] = zdt1) -> float:
    search = OptunaSearch(ZDT1, ["a", "b"], ["min", "min"], sampler=sampler, seed=seed)
    points = []
    for number in range(trials):
        points.append(function(search.suggest(str(number))))
        search.on_trial_complete(str(number), dict(zip("ab", points[-1], strict=True)))
    return missing(points)


def test_nsgaii_finds_a_better_front_than_chance() -> None:
    nsgaii, random = ([front(sampler, seed, 300) for seed in range(2)] for sampler in ("nsgaii", "random"))
    assert all(a < b for a, b in zip(nsgaii, random, strict=True))
    assert sum(nsgaii) < 0.75 * sum(random)
