"""Scripts as people write them, and the runs that they make."""

import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

SCRIPT = """
import os, signal, sys, time
from pathlib import Path
from paceline import train
from paceline.train import Checkpoint, CheckpointConfig, DataParallelTrainer, FailureConfig, RunConfig, ScalingConfig

STORAGE, NAME, WHAT = sys.argv[1:4]
IS_ODD = sys.argv[5] == "odd"

def train_func(config):
    rank = train.get_context().get_world_rank()
    checkpoint = train.get_checkpoint()
    first = checkpoint.to_dict()["step"] if checkpoint is not None else 0
    print(f"rank {rank} begins at {first}")
    if IS_ODD:
        print("\\x1b[31mred\\x1b[0m and \\x1b]0;a title\\x07 hostile \\x1b[2J")
    for step in range(first + 1, config["steps"] + 1):
        if config["what"] == "failing" and step == 4:
            if rank == 1:
                raise ValueError(f"batch {step} has a nan in it")
            time.sleep(1000)  # Until it is ended, so that it has not come further than the other.
        if config["what"] == "killed" and step == 4 and rank == 0:
            Path(config["reached"]).touch()
            time.sleep(1000)
        loss = config["lr"] * 10 / step
        print(f"step {step} loss {loss:.3f}")
        kept = Checkpoint.from_dict({"step": step, "weights": [1.0] * 100})
        metrics = {"loss": loss, "eval": {"acc": step / 10}}
        if IS_ODD:
            x = float(("1", "nan", "inf", "2.5", "0")[step - 1])
            metrics |= {"note": "\\x1b[2Jtext", "x": x, "big": 10**30, "step": 7, "many": [1, 2]}
        train.report(metrics, checkpoint=kept)

if __name__ == "__main__":
    trainer = DataParallelTrainer(
        train_func,
        train_loop_config={
            "lr": float(sys.argv[4]), "steps": 5, "what": WHAT, "api_key": "k3y",
            "reached": f"{STORAGE}/{NAME}.reached",
        },
        scaling_config=ScalingConfig(2),
        run_config=RunConfig(
            name=NAME,
            storage_path=STORAGE,
            failure_config=FailureConfig(max_failures=1),
            checkpoint_config=CheckpointConfig(checkpoint_score_attribute="loss", checkpoint_score_order="min"),
        ),
    )
    trainer.fit()
"""

ODD_SCRIPT = SCRIPT.replace("* 10 / step", "* 10 / step if step < 3 else float(step)")

SEARCH = """
import sys
from paceline import tune

def train_func(config):
    for step in range(3):
        tune.report({"loss": config["x"] + 1 / (step + 1)}, checkpoint=tune.Checkpoint.from_dict({"step": step}))

if __name__ == "__main__":
    tune.Tuner(
        train_func,
        param_space={"x": tune.grid_search([0.5, 0.25, 1.0])},
        tune_config=tune.TuneConfig(metric="loss", mode="min"),
        run_config=tune.RunConfig(name="sweep", storage_path=sys.argv[1]),
    ).fit()
"""


@dataclass(frozen=True)
class Runs:
    root: Path
    script: Path

    @classmethod
    def in_directory(cls, place: Path, source: str) -> "Runs":
        (place / "runs").mkdir()
        (place / "train.py").write_text(source)
        return cls(place / "runs", place / "train.py")


def start_script(
    runs: Runs, name: str, what: str, *, lr: float = 0.1, looks: str = "plain"
) -> "subprocess.Popen[bytes]":
    """Starts the driver of a run; what it prints is in `NAME.out` next to the script."""
    place = runs.script.parent
    command = [sys.executable, "train.py", str(runs.root), name, what, str(lr), looks]
    with (place / f"{name}.out").open("wb") as out:
        return subprocess.Popen(command, cwd=place, stdin=subprocess.DEVNULL, stdout=out, stderr=out)


def kill_at_step_4(runs: Runs, name: str) -> None:
    reached = runs.root / f"{name}.reached"
    driver = start_script(runs, name, "killed")
    while not reached.exists():
        assert driver.poll() is None, (runs.script.parent / f"{name}.out").read_text()
        try:
            driver.wait(0.02)
        except subprocess.TimeoutExpired:
            continue
    driver.kill()
    driver.wait()
