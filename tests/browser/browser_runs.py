"""Runs to look at: finished ones, in which something happened, and others that go on until they are told to stop."""

import math
import os
import random
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from paceline import train, tune
from paceline.train import Checkpoint, CheckpointConfig, DataParallelTrainer, FailureConfig, RunConfig, ScalingConfig

HOSTILE = "<img src=x onerror=\"document.title='taken over'\">"
"""A name, as somebody might choose it who means no good."""
HOSTILE_SCRIPT = "<script>document.title='taken over'</script>"
NEEDLE = "the needle in this log"


def make_curves(root: Path) -> None:
    """`short` and `long` are complete, `broken` failed in its second report."""
    fit(root, "short", metrics="curves", lr=0.1, steps=40, save_every=20)
    fit(root, "long", metrics="curves", lr=0.01, steps=120, save_every=20)
    with pytest.raises(train.TrainingFailedError):
        fit(root, "broken", metrics="curves", lr=9.0, steps=5, break_at=2)


def make_events(root: Path) -> None:
    """`killed`: rank 1 was killed in the first attempt. `calm`: as it, with another rate. `sweep`: twelve trials."""
    fit(root, "killed", num_to_keep=1, lr=0.1, steps=8, kill_at=5, save_every=2, save_until=4, lines=800, note=HOSTILE)
    fit(root, "calm", num_to_keep=1, lr=0.2, steps=4, kill_at=0, save_every=2, save_until=4, lines=800, note=HOSTILE)
    search(root, {"lr": [0.001, 0.003, 0.01, 0.03, 0.1, 0.3], "act": ["gelu", "relu"]}, note=HOSTILE)


def make_pretty(root: Path) -> None:
    """For the pictures of the documentation."""
    pretty: dict[str, Any] = {"metrics": "pretty", "num_to_keep": 2, "steps": 300, "save_every": 50}
    fit(root, "resnet18-sgd", rate=0.9, seed=1, **pretty)
    fit(root, "resnet18-adamw", rate=1.6, seed=2, **pretty)
    fit(root, "resnet18-cosine", rate=1.3, seed=3, kill_at=170, **pretty)
    with pytest.raises(train.TrainingFailedError):
        fit(root, "vit-tiny", rate=0.4, seed=4, break_at=90, **pretty)
    search(root, {"lr": [0.001, 0.003, 0.01, 0.03, 0.1], "width": [64, 128], "act": ["relu", "gelu"]})


def fit(root: Path, name: str, *, num_to_keep: int | None = None, **config: Any) -> None:
    DataParallelTrainer(
        _train,
        train_loop_config=config,
        scaling_config=ScalingConfig(2),
        run_config=RunConfig(
            name=name,
            storage_path=root,
            failure_config=FailureConfig(max_failures=1 if "kill_at" in config else 0),
            checkpoint_config=CheckpointConfig(num_to_keep=num_to_keep),
        ),
    ).fit()


def search(root: Path, grid: dict[str, list[Any]], **others: Any) -> None:
    tune.Tuner(
        _objective,
        param_space={**{name: tune.grid_search(values) for name, values in grid.items()}, **others},
        tune_config=tune.TuneConfig(metric="loss", mode="min"),
        run_config=RunConfig(name="sweep", storage_path=root),
    ).fit()


def _train(config: dict[str, Any]) -> None:
    rank, checkpoint = train.get_context().get_world_rank(), train.get_checkpoint()
    print(f"{HOSTILE} {HOSTILE_SCRIPT}")
    for line in range(config.get("lines", 0)):
        print(f"rank {rank}, line {line}" + (f": {NEEDLE}" if line == 600 else ""))
    begin = checkpoint.to_dict()["step"] + 1 if checkpoint else 1
    for step in range(begin, config["steps"] + 1):
        if rank == 1 and checkpoint is None and step == config.get("kill_at"):
            print("the last words of rank 1", flush=True)
            os.kill(os.getpid(), signal.SIGKILL)
        if step == config.get("break_at"):
            raise RuntimeError(f"the loss is <b>nan</b> at step {step}")
        metrics = METRICS[config.get("metrics", "plain")](config, step)
        saves = step % config.get("save_every", 1000) == 0 and step <= config.get("save_until", 1000)
        train.report(metrics, checkpoint=Checkpoint.from_dict({"step": step}) if saves else None)


def _curves(config: dict[str, Any], step: int) -> dict[str, Any]:
    loss = 2.0 / (1 + config["lr"] * step) + (0.05 if step % 7 == 0 else 0.0)
    return {
        "loss": loss,
        "train": {"accuracy": 1 - loss / 2.1, "lr": config["lr"] * 0.99**step},
        "eval": {"loss": float("nan") if step == 5 else loss * 1.1, "zero or less": 3.0 - step},
        HOSTILE: float(step),
    }


def _pretty(config: dict[str, Any], step: int) -> dict[str, Any]:
    noise = random.Random(f"{config['seed']} {step}")
    part = 1 - math.exp(-config["rate"] * step / 90)
    return {
        "train": {
            "loss": 2.3 - 2.1 * part + noise.gauss(0, 0.06),
            "accuracy": 0.1 + 0.84 * part + noise.gauss(0, 0.015),
            "lr": 0.1 * (0.5 + 0.5 * math.cos(math.pi * step / 300)) * min(1, step / 20),
            "grad norm": math.exp(noise.gauss(0, 0.4)) * (3 - 2 * part),
        },
        "eval": {
            "loss": 2.3 - 1.95 * part + 0.0006 * step + noise.gauss(0, 0.02),
            "accuracy": 0.1 + 0.8 * part + noise.gauss(0, 0.008),
        },
    }


METRICS = {"plain": lambda config, step: {"loss": 1 / step, "epoch": 1}, "curves": _curves, "pretty": _pretty}


def _objective(config: dict[str, Any]) -> None:
    far = abs(config["lr"] - 0.03) * 3 + (0.05 if config["act"] == "relu" else 0) + 6 / config.get("width", 64)
    for step in range(1, 6):
        train.report({"loss": far + 1 / step})


SCRIPTS = {
    "live": """
def work():
    for step in range(1, 1000):
        if not passed(step):
            return
        train.report({"loss": 1 / step, "eval": {"loss": 2 / step}})

train.DataParallelTrainer(work, scaling_config=train.ScalingConfig(1), run_config=run_config).fit()
""",
    "working": """
def busy(until):
    while time.monotonic() < until:
        sum(range(1000))

busy.__code__ = busy.__code__.replace(co_name=hostile, co_qualname=hostile)

def work():
    step = 0
    while True:
        step += 1
        print(f"step {step} of the work", flush=True)
        busy(time.monotonic() + 0.05)
        train.report({"loss": 1 / step})

train.DataParallelTrainer(work, scaling_config=train.ScalingConfig(1), run_config=run_config).fit()
""",
}
"""`live` reports when a file with the number of the report is there.
`working` goes on until somebody stops it, much of the time in a function with a hostile name."""

BEGIN = """
import sys, time
from pathlib import Path
from paceline import train

name, root, gate, hostile = sys.argv[1:]
run_config = train.RunConfig(name=name, storage_path=root)

def passed(step):
    while not Path(gate, str(step)).exists():
        if Path(gate, "end").exists():
            return False
        time.sleep(0.01)
    return True
"""


@dataclass
class Going:
    """A run that goes on in a process of its own."""

    process: "subprocess.Popen[bytes]"
    gate: Path
    steps: int = 0

    def step(self, count: int = 1) -> None:
        """Let it make so many more reports."""
        for _ in range(count):
            self.steps += 1
            (self.gate / str(self.steps)).touch()

    def end(self) -> int:
        (self.gate / "end").touch()
        return self.process.wait(60)


def start(name: str, root: Path, scratch: Path) -> Going:
    gate, script = scratch / f"gate-{name}", scratch / f"{name}.py"
    gate.mkdir()
    script.write_text(BEGIN + SCRIPTS[name])
    return Going(subprocess.Popen([sys.executable, script, name, root, gate, HOSTILE], cwd=scratch), gate)
