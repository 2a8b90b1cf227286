"""The function API of Tune with ASHA, by the configuration and the session of AIR."""

from ray import air, tune
from ray.air import session
from ray.tune.schedulers import ASHAScheduler


def objective(config):
    for step in range(4):
        session.report({"score": config["a"] * (step + 1) + config["b"]})


tuner = tune.Tuner(
    tune.with_resources(objective, {"cpu": 1}),
    param_space={"a": tune.grid_search([1, 2]), "b": tune.choice([0, 1])},
    tune_config=tune.TuneConfig(
        metric="score", mode="max", num_samples=2, scheduler=ASHAScheduler(max_t=4, grace_period=1)
    ),
    run_config=air.RunConfig(name="air", stop={"training_iteration": 3}, verbose=0),
)
results = tuner.fit()
best = results.get_best_result()
assert len(results) == 4
assert (best.config["a"], best.metrics["training_iteration"]) == (2, 3)
assert not results.errors
assert results.get_dataframe()["score"].max() == best.metrics["score"]
