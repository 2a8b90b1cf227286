"""Names of trials, a reporter, experiments by dict and object, trainables by name, and `tune.run` with its analysis."""

import os

from ray import tune
from ray.tune import CLIReporter, Experiment, register_trainable, run_experiments
from ray.tune.experiment.trial import Trial
from ray.tune.schedulers import AsyncHyperBandScheduler


def name_trial(trial: Trial):
    return f"{trial.trainable_name}_{trial.trial_id}_named"


def objective(config):
    assert tune.get_context().get_trial_name().endswith("_named") or not config["is_named"]
    for step in range(3):
        tune.report({"score": step * config["x"]})


results = tune.Tuner(
    objective,
    param_space={"x": tune.grid_search([1, 2]), "is_named": True},
    tune_config=tune.TuneConfig(
        trial_name_creator=name_trial, trial_dirname_creator=lambda trial: f"dir_{trial.trial_id}"
    ),
    run_config=tune.RunConfig(
        name="named",
        progress_reporter=CLIReporter(parameter_columns=["x"], metric_columns={"score": "Score"}, max_progress_rows=3),
    ),
).fit()
assert not results.errors
assert all(os.path.basename(result.path).startswith("dir_") for result in results)

register_trainable("objective", objective)
config = {"x": 1, "is_named": False}
trials = run_experiments(
    {"first": {"run": "objective", "stop": {"training_iteration": 2}, "num_samples": 2, "config": config}}
)
assert [trial.last_result["training_iteration"] for trial in trials] == [2, 2]
experiment = Experiment(
    name="second", run=objective, stop={"score": 1}, config={**config, "x": tune.grid_search([1, 2])}
)
analysis = tune.run(experiment, metric="score", mode="max")
assert sorted(trial.last_result["score"] for trial in analysis.trials) == [1, 2]
analysis = tune.run(
    objective,
    config={**config, "x": tune.grid_search([1, 2])},
    metric="score",
    mode="max",
    stop={"training_iteration": 3},
    scheduler=AsyncHyperBandScheduler(max_t=4),
    resources_per_trial={"cpu": 1},
)
assert isinstance(analysis, tune.ExperimentAnalysis)
assert (analysis.best_config["x"], analysis.best_result["score"]) == (2, 4)
