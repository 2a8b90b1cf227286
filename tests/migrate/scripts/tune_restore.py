"""A trial fails; the search is restored, and the failed trial goes on from its checkpoint. Its files are read."""

import json
import os
import tempfile
from pathlib import Path

from ray import tune
from ray.tune import Checkpoint, Tuner
from ray.tune.analysis.experiment_analysis import ExperimentAnalysis

storage = tempfile.mkdtemp()
path = os.path.join(storage, "restored")


def objective(config, data):
    first = 0
    if tune.get_checkpoint():
        with tune.get_checkpoint().as_directory() as folder:
            first = json.loads(Path(folder, "step").read_text()) + 1
    for step in range(first, 5):
        if step == 2 and config["x"] == 1 and not Path(storage, "mended").exists():
            raise RuntimeError("lost")
        with tempfile.TemporaryDirectory() as folder:
            Path(folder, "step").write_text(json.dumps(step))
            tune.report({"step": step, "first": first}, checkpoint=Checkpoint.from_directory(folder))


space = {"x": tune.grid_search([0, 1])}
results = Tuner(
    tune.with_parameters(objective, data=[1]),
    param_space=space,
    run_config=tune.RunConfig(name="restored", storage_path=storage),
).fit()
assert results.num_errors == 1

Path(storage, "mended").touch()
assert Tuner.can_restore(path)
results = Tuner.restore(
    path, trainable=tune.with_parameters(objective, data=[2]), resume_errored=True, param_space=space
).fit()
assert not results.errors
assert {result.config["x"]: result.metrics["first"] for result in results} == {0: 0, 1: 2}
assert len(results.get_best_result("step", "max").metrics_dataframe) == 5
analysis = ExperimentAnalysis(path, default_metric="step", default_mode="max")
assert len(analysis.trials) == 2
assert analysis.best_result["step"] == 4
