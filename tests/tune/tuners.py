"""How tests make a search, and a trainable for it."""

from paceline import tune


def make_tuner(directory, trainable, space=None, run=None, **tune_config):
    """A search named `search` in a directory; `run` has arguments of `RunConfig`, all others are of `TuneConfig`."""
    return tune.Tuner(
        trainable,
        param_space=space,
        tune_config=tune.TuneConfig(**tune_config),
        run_config=tune.RunConfig(**{"name": "search", "storage_path": str(directory), **(run or {})}),
    )


class Counts(tune.Trainable):
    """Counts its steps, up to `to`."""

    def setup(self, config):
        self.count = config.get("start", 0)

    def step(self):
        self.count += 1
        return {"count": self.count, "done": self.count == self.config.get("to")}

    def save_checkpoint(self, checkpoint_dir):
        return {"count": self.count}

    def load_checkpoint(self, checkpoint):
        self.count = checkpoint["count"]
