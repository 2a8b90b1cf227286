"""Optuna as a searcher with a limit, parameters by `with_parameters`, and a stopper."""

import importlib

import numpy as np
from ray.tune import RunConfig, TuneConfig, Tuner, report, uniform, with_parameters
from ray.tune.search import ConcurrencyLimiter
from ray.tune.search.optuna import OptunaSearch
from ray.tune.stopper import MaximumIterationStopper


def objective(config, data):
    for _ in range(5):
        report({"error": float(((data - config["x"]) ** 2).mean())})


tune = importlib.import_module("ray.tune")
results = Tuner(
    with_parameters(objective, data=np.ones(10)),
    param_space={"x": uniform(0, 2), "y": tune.sample_from(lambda spec: 1)},
    tune_config=TuneConfig(
        metric="error", mode="min", num_samples=4, search_alg=ConcurrencyLimiter(OptunaSearch(), max_concurrent=2)
    ),
    run_config=RunConfig(stop=MaximumIterationStopper(2)),
).fit()
assert len(results) == 4
assert all(result.metrics["training_iteration"] == 2 for result in results)
