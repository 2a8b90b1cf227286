"""How tests make a search."""

from paceline import tune


def make_tuner(directory, trainable, space=None, run=None, **tune_config):
    """A search named `search` in a directory; `run` has arguments of `RunConfig`, all others are of `TuneConfig`."""
    return tune.Tuner(
        trainable,
        param_space=space,
        tune_config=tune.TuneConfig(**tune_config),
        run_config=tune.RunConfig(**{"name": "search", "storage_path": str(directory), **(run or {})}),
    )
