"""A training run over the hosts, as a user's script. Arguments: storage path, name, number of steps.

Each worker notes its process and its steps in files beside the run, which the test reads. At the end the script prints
the rows of the metrics and the number of attempts as JSON.
"""

import json
import os
import socket
import sys
import time
from pathlib import Path

from paceline import train
from paceline.train import Checkpoint, DataParallelTrainer, FailureConfig, RunConfig, ScalingConfig

NUM_WORKERS = 3


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
        time.sleep(0.02)  # what a step computes
        state = {"step": state["step"] + 1, "value": state["value"] * 0.9 + state["step"]}
        saves = state["step"] % 5 == 0
        train.report(dict(state), checkpoint=Checkpoint.from_dict(state) if saves else None)
        with (notes / "steps").open("a") as file:
            file.write(f"{state['step']}\n")


def main():
    storage, name, steps = sys.argv[1], sys.argv[2], int(sys.argv[3])
    notes = Path(storage, f"{name}-notes")
    notes.mkdir(parents=True, exist_ok=True)
    result = DataParallelTrainer(
        train_func,
        train_loop_config={"steps": steps, "notes": str(notes)},
        scaling_config=ScalingConfig(num_workers=NUM_WORKERS, placement_strategy="SPREAD"),
        run_config=RunConfig(name=name, storage_path=storage, failure_config=FailureConfig(max_failures=5)),
    ).fit()
    rows = result.metrics_dataframe
    print(json.dumps({"steps": list(rows["step"]), "values": list(rows["value"])}))


if __name__ == "__main__":
    main()
