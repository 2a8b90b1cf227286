"""A training run over the hosts, as a user's script. Arguments: storage path, notes, name, number of steps, options.

Each worker notes its process and its steps in files on the shared disk, which the test reads. At the end the script
prints the rows of the metrics as JSON.
"""

import json
import os
import socket
import sys
import time
from pathlib import Path

from paceline import train
from paceline.train import Checkpoint, DataParallelTrainer, FailureConfig, RunConfig, ScalingConfig

OPTIONS = {
    "num_workers": 3,
    "pace_s": 0.02,
    "max_failures": 5,
    "env_vars": {},
}


def train_func(config):
    context = train.get_context()
    notes = Path(config["notes"])
    state = {"step": 0, "value": 1.0}
    checkpoint = train.get_checkpoint()
    if checkpoint is not None:
        state = checkpoint.to_dict()
    where = {"pid": os.getpid(), "host": socket.gethostname(), "step": state["step"]}
    (notes / f"rank_{context.get_world_rank()}").write_text(json.dumps(where))
    while state["step"] < config["steps"]:
        time.sleep(config["pace_s"])  # what a step computes
        state = {"step": state["step"] + 1, "value": state["value"] * 0.9 + state["step"]}
        saves = state["step"] % 5 == 0
        train.report(dict(state), checkpoint=Checkpoint.from_dict(state) if saves else None)
        with (notes / "steps").open("a") as file:
            file.write(f"{context.get_world_rank()} {state['step']} {time.time()}\n")


def main():
    storage, notes, name, steps = sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4])
    options = {**OPTIONS, **json.loads(sys.argv[5])}
    result = DataParallelTrainer(
        train_func,
        train_loop_config={"steps": steps, "notes": notes, "pace_s": options["pace_s"]},
        scaling_config=ScalingConfig(num_workers=options["num_workers"], placement_strategy="SPREAD"),
        run_config=RunConfig(
            name=name,
            storage_path=storage,
            failure_config=FailureConfig(max_failures=options["max_failures"]),
            worker_runtime_env={"env_vars": options["env_vars"]} if options["env_vars"] else None,
        ),
    ).fit()
    rows = result.metrics_dataframe
    print(json.dumps({"steps": list(rows["step"]), "values": list(rows["value"])}))


if __name__ == "__main__":
    main()
