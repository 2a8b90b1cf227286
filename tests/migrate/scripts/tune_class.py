"""The class API of Tune with a dict of what stops a trial."""

import json
import os

from ray import tune


class Line(tune.Trainable):
    def setup(self, config):
        self.x = 0

    def step(self):
        self.x += self.config["slope"]
        return {"x": self.x}

    def save_checkpoint(self, checkpoint_dir):
        with open(os.path.join(checkpoint_dir, "x.json"), "w") as file:
            json.dump(self.x, file)
        return checkpoint_dir

    def load_checkpoint(self, checkpoint_dir):
        with open(os.path.join(checkpoint_dir, "x.json")) as file:
            self.x = json.load(file)


results = tune.Tuner(
    Line,
    param_space={"slope": tune.grid_search([1, 3])},
    run_config=tune.RunConfig(
        name="class", stop={"training_iteration": 3}, checkpoint_config=tune.CheckpointConfig(checkpoint_at_end=True)
    ),
).fit()
best = results.get_best_result(metric="x", mode="max")
assert best.metrics["x"] == 9
assert best.metrics["training_iteration"] == 3
with best.checkpoint.as_directory() as folder:
    assert os.listdir(folder)
