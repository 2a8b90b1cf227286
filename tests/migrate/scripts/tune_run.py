"""`tune.run` of Ray 1.x and 2.x: a reporter, what stops a trial, and the analysis of its trials."""

from ray import tune
from ray.tune import CLIReporter
from ray.tune.schedulers import AsyncHyperBandScheduler


def objective(config):
    for step in range(1, 6):
        tune.report({"loss": config["start"] / step})


reporter = CLIReporter(metric_columns=["loss", "training_iteration"], max_report_frequency=1)
analysis = tune.run(
    objective,
    config={"start": tune.grid_search([1.0, 2.0])},
    metric="loss",
    mode="min",
    num_samples=1,
    stop={"training_iteration": 4},
    scheduler=AsyncHyperBandScheduler(max_t=4),
    resources_per_trial={"cpu": 1},
    progress_reporter=reporter,
    verbose=1,
)
assert isinstance(analysis, tune.ExperimentAnalysis)
assert analysis.best_config == {"start": 1.0}
assert analysis.best_result["loss"] == 0.25
assert len(analysis.trials) == 2
assert len(analysis.dataframe(metric="loss", mode="min")) == 2
assert analysis.get_best_trial("loss", "min", "last").config["start"] == 1.0
