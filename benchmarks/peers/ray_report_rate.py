"""Times a few reports. Arguments: a directory, the number of reports."""

import json
import sys
import time
from pathlib import Path

from ray import train
from ray.train.torch import TorchTrainer


def train_func(config):
    took = []
    for i in range(config["count"]):
        before = time.perf_counter()
        train.report({"i": i, "loss": 0.25, "accuracy": 0.75, "rate": 1e-3})
        took.append(time.perf_counter() - before)
    rank = train.get_context().get_world_rank()
    Path(config["directory"], f"rank_{rank}.json").write_text(json.dumps(took))


TorchTrainer(
    train_func,
    train_loop_config={"directory": sys.argv[1], "count": int(sys.argv[2])},
    scaling_config=train.ScalingConfig(num_workers=2),
    run_config=train.RunConfig(name="run", storage_path=sys.argv[1]),
).fit()
