"""A search of Ray 2.0 to 2.6, whose configuration is that of AIR, with its session."""

from ray import air, tune
from ray.air import session


def objective(config):
    for step in range(10):
        session.report({"score": step * config["slope"]})


results = tune.Tuner(
    objective,
    param_space={"slope": tune.grid_search([1, 2])},
    tune_config=tune.TuneConfig(metric="score", mode="max"),
    run_config=air.RunConfig(name="air", stop={"training_iteration": 3}, verbose=0),
).fit()
assert results.get_best_result().metrics["score"] == 4
