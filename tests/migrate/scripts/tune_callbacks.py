"""Callbacks and loggers of a search, which hear of every trial."""

from ray import tune
from ray.tune import Callback, RunConfig, Tuner
from ray.tune.logger import CSVLoggerCallback, JsonLoggerCallback, LoggerCallback

heard = []


class Hears(Callback):
    def on_trial_result(self, iteration, trials, trial, result, **info):
        heard.append(("result", trial.config["x"], result["y"]))

    def on_trial_complete(self, iteration, trials, trial, **info):
        heard.append(("complete", trial.config["x"]))


class Logs(LoggerCallback):
    def log_trial_start(self, trial):
        heard.append(("start", trial.config["x"]))

    def log_trial_result(self, iteration, trial, result):
        heard.append(("logged", trial.config["x"], result["y"]))

    def log_trial_end(self, trial, failed=False):
        heard.append(("end", trial.config["x"], failed))


def objective(config):
    tune.report({"y": config["x"] ** 2})


results = Tuner(
    objective,
    param_space={"x": tune.grid_search([2])},
    run_config=RunConfig(callbacks=[Hears(), Logs(), CSVLoggerCallback(), JsonLoggerCallback()]),
).fit()
assert results[0].metrics["y"] == 4
assert {("result", 2, 4), ("complete", 2), ("start", 2), ("logged", 2, 4), ("end", 2, False)} <= {*heard}, heard
