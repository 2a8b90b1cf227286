"""Hyperopt with a space of its own that has conditions, and bounds for a Gaussian process."""

from hyperopt import hp
from ray import tune
from ray.tune.schedulers import AsyncHyperBandScheduler
from ray.tune.search import ConcurrencyLimiter
from ray.tune.search.bayesopt import BayesOptSearch
from ray.tune.search.hyperopt import HyperOptSearch


def objective(config):
    mult = config.get("activation", {}).get("mult", 1)
    for step in range(3):
        tune.report({"loss": (config["width"] - 3) ** 2 * mult / (step + 1)})


space = {
    "width": hp.uniform("width", 0, 20),
    "activation": hp.choice("activation", [{"kind": "relu", "mult": hp.uniform("mult", 1, 2)}, {"kind": "tanh"}]),
}
searcher = HyperOptSearch(space, metric="loss", mode="min", n_initial_points=2)
results = tune.Tuner(
    objective,
    tune_config=tune.TuneConfig(
        search_alg=ConcurrencyLimiter(searcher, max_concurrent=2),
        scheduler=AsyncHyperBandScheduler(metric="loss", mode="min"),
        num_samples=4,
    ),
).fit()
assert len(results) == 4
assert not results.errors
assert {result.config["activation"]["kind"] for result in results} <= {"relu", "tanh"}

searcher = BayesOptSearch({"width": (0, 20)}, metric="loss", mode="min", random_search_steps=2)
results = tune.Tuner(objective, tune_config=tune.TuneConfig(search_alg=searcher, num_samples=3)).fit()
assert all(0 <= result.config["width"] <= 20 for result in results)
