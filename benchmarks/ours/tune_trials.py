"""A search of trivial trials. Arguments: a directory, how many."""

import json
import sys
import time
from pathlib import Path

began = time.perf_counter()

from paceline import tune  # noqa: E402  the import is timed too


def train_func(config):
    for step in range(3):
        tune.report({"loss": config["x"] / (step + 1)})


results = tune.Tuner(
    train_func,
    param_space={"x": tune.uniform(0, 1)},
    tune_config=tune.TuneConfig(metric="loss", mode="min", num_samples=int(sys.argv[2])),
    run_config=tune.RunConfig(name="search", storage_path=sys.argv[1]),
).fit()
assert results.get_best_result().metrics["loss"] < 1
Path(sys.argv[1], "took.json").write_text(json.dumps([time.perf_counter() - began]))
