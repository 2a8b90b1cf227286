"""Population based training, with checkpoints that a trial takes over from a better one."""

import json
import tempfile
from pathlib import Path

from ray import tune
from ray.tune import Checkpoint
from ray.tune.schedulers import PopulationBasedTraining


def objective(config):
    step, score = 0, 0.0
    checkpoint = tune.get_checkpoint()
    if checkpoint:
        with checkpoint.as_directory() as folder:
            step, score = json.loads(Path(folder, "state.json").read_text())
    while step < 6:
        step, score = step + 1, score + config["lr"]
        with tempfile.TemporaryDirectory() as folder:
            Path(folder, "state.json").write_text(json.dumps([step, score]))
            tune.report({"score": score}, checkpoint=Checkpoint.from_directory(folder))


scheduler = PopulationBasedTraining(
    time_attr="training_iteration",
    perturbation_interval=2,
    hyperparam_mutations={"lr": tune.uniform(0.1, 1.0)},
)
results = tune.Tuner(
    objective,
    param_space={"lr": tune.uniform(0.1, 1.0)},
    tune_config=tune.TuneConfig(metric="score", mode="max", num_samples=3, scheduler=scheduler),
    run_config=tune.RunConfig(name="pbt"),
).fit()
assert len(results) == 3
assert results.get_best_result().metrics["score"] > 0.6
