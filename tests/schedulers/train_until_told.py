"""A training run that ends when a test says so. Arguments: name, number of workers, directory (that of this file).

It saves a checkpoint only when it has to stop. `NAME.steps` in the directory has a line for each start of the workers,
`from STEP`, and one for each step of rank 0.
"""

import sys
import time
from functools import partial
from pathlib import Path

from paceline import train
from paceline.train import Checkpoint, DataParallelTrainer, RunConfig, ScalingConfig


def train_func(config):
    last = train.get_checkpoint()
    step = last.to_dict()["step"] if last else 0
    path = Path(config["path"])

    def note(line):
        if train.get_context().get_world_rank() == 0:
            with path.with_suffix(".steps").open("a") as file:
                file.write(f"{line}\n")

    note(f"from {step}")
    while True:
        is_last = train.collective.broadcast_from_rank_zero(path.with_suffix(".finish").exists())
        step += 1
        time.sleep(0.05)  # what a step computes
        train.report({"step": step}, checkpoint_on_stop=partial(Checkpoint.from_dict, {"step": step}))
        note(step)
        if is_last:
            return


def main():
    name, num_workers, *others = sys.argv[1:]
    here = Path(*others) if others else Path(__file__).parent
    result = DataParallelTrainer(
        train_func,
        train_loop_config={"path": str(here / name)},
        scaling_config=ScalingConfig(num_workers=int(num_workers), placement_strategy="SPREAD"),
        run_config=RunConfig(name=name, storage_path=str(here / "runs")),
    ).fit()
    (here / f"{name}.rows").write_text(" ".join(map(str, result.metrics_dataframe["step"])))


if __name__ == "__main__":
    main()
