"""A callback with every hook, and loggers: one that writes whole results to a file of each trial, and built-in ones."""

import json
import os
import tempfile

from ray import tune
from ray.tune import Callback, Checkpoint, RunConfig, Tuner
from ray.tune.logger import CSVLoggerCallback, JsonLoggerCallback, LoggerCallback

ADDED = "training_iteration time_this_iter_s time_total_s time_since_restore iterations_since_restore timestamp date"
ADDED += " pid hostname node_ip trial_id done config"


class Counts(Callback):
    def __init__(self):
        self.calls = []

    def setup(self, stop=None, num_samples=None, total_num_samples=None, **info):
        assert (num_samples, total_num_samples) == (1, 2)

    def on_step_begin(self, iteration, trials, **info):
        self.calls.append("step_begin")

    def on_step_end(self, iteration, trials, **info):
        self.calls.append("step_end")

    def on_trial_start(self, iteration, trials, trial, **info):
        self.calls.append("start")

    def on_trial_result(self, iteration, trials, trial, result, **info):
        self.calls.append("result")
        assert not {*ADDED.split()} - {*result}
        assert str(trial) == f"train_fn_{trial.trial_id}"
        assert trial.experiment_tag.endswith(f"_x={result['config']['x']}")

    def on_trial_save(self, iteration, trials, trial, **info):
        self.calls.append("save")

    def on_checkpoint(self, iteration, trials, trial, checkpoint, **info):
        self.calls.append("checkpoint")

    def on_trial_recover(self, iteration, trials, trial, **info):
        self.calls.append("recover")

    def on_trial_restore(self, iteration, trials, trial, **info):
        self.calls.append("restore")

    def on_trial_complete(self, iteration, trials, trial, **info):
        self.calls.append("complete")

    def on_trial_error(self, iteration, trials, trial, **info):
        self.calls.append("error")

    def on_experiment_end(self, trials, **info):
        self.calls.append("end")
        assert all(trial.is_finished() for trial in trials)

    def get_state(self):
        return {"calls": self.calls}

    def set_state(self, state):
        self.calls = state["calls"]


class WritesResults(LoggerCallback):
    def __init__(self, filename="log.txt"):
        self._files = {}
        self._filename = filename

    def log_trial_start(self, trial):
        self._files[trial] = open(os.path.join(trial.local_path, self._filename), "a")  # noqa: SIM115

    def log_trial_result(self, iteration, trial, result):
        self._files[trial].write(json.dumps(result) + "\n")

    def log_trial_end(self, trial, failed=False):
        self._files.pop(trial).close()


def train_fn(config):
    for step in range(3):
        with tempfile.TemporaryDirectory() as directory:
            with open(os.path.join(directory, "step.txt"), "w") as file:
                file.write(str(step))
            tune.report({"metric": step}, checkpoint=Checkpoint.from_directory(directory))
    if config["x"] == 2:
        raise ValueError("two")


counts = Counts()
loggers = [WritesResults("results.txt"), CSVLoggerCallback(), JsonLoggerCallback()]
run_config = RunConfig(name="hooks", callbacks=[counts, *loggers])
results = Tuner(train_fn, param_space={"x": tune.grid_search([1, 2])}, run_config=run_config).fit()
assert results.num_errors == 1
expected = {"start": 2, "result": 6, "save": 6, "checkpoint": 6, "complete": 1, "error": 1, "end": 1}
assert {name: counts.calls.count(name) for name in expected} == expected
with open(os.path.join(results[0].path, "results.txt")) as file:
    rows = [json.loads(line) for line in file]
assert [row["training_iteration"] for row in rows] == [1, 2, 3]
