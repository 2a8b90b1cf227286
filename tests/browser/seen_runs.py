"""Runs in which something happens: a worker is killed, a search is made, one goes on until it is told to stop."""

import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from paceline import train, tune
from paceline.train import Checkpoint, CheckpointConfig, DataParallelTrainer, FailureConfig, RunConfig, ScalingConfig

HOSTILE = "<img src=x onerror=\"document.title='taken over'\">"
HOSTILE_SCRIPT = "<script>document.title='taken over'</script>"
RATES = [0.001, 0.003, 0.01, 0.03, 0.1, 0.3]
NEEDLE = "the needle in this log"


def make(root: Path) -> None:
    """`killed`: rank 1 was killed in the first attempt. `calm`: as it, with another rate. `sweep`: twelve trials."""
    scratch = root.parent / f"scratch-{root.name}"
    scratch.mkdir()
    fit(root, "killed", {"lr": 0.1, "steps": 8, "kill_at": 5, "scratch": str(scratch), "note": HOSTILE})
    fit(root, "calm", {"lr": 0.2, "steps": 4, "kill_at": 0, "scratch": str(scratch), "note": HOSTILE})
    tune.Tuner(
        _objective,
        param_space={"lr": tune.grid_search(RATES), "act": tune.grid_search(["gelu", "relu"]), "note": HOSTILE},
        tune_config=tune.TuneConfig(metric="loss", mode="min"),
        run_config=RunConfig(name="sweep", storage_path=root),
    ).fit()


def picture(page: Any, name: str, of: str = "main") -> None:
    """Keep how a part of the page looks, for the documentation, if PACELINE_PICTURES says where."""
    if folder := os.environ.get("PACELINE_PICTURES"):
        # What stays at the top of the window would lie over it, and says where the runs of a test are.
        page.evaluate("() => { document.querySelector('.top').hidden = true; }")
        Path(folder, f"dashboard-{name}.png").write_bytes(page.locator(of).first.screenshot())
        page.evaluate("() => { document.querySelector('.top').hidden = false; }")


def fit(root: Path, name: str, config: dict[str, Any]) -> None:
    DataParallelTrainer(
        _train,
        train_loop_config=config,
        scaling_config=ScalingConfig(2),
        run_config=RunConfig(
            name=name,
            storage_path=root,
            failure_config=FailureConfig(max_failures=1),
            checkpoint_config=CheckpointConfig(num_to_keep=1),
        ),
    ).fit()


def _train(config: dict[str, Any]) -> None:
    rank, is_first = train.get_context().get_world_rank(), train.get_checkpoint() is None
    print(f"{HOSTILE} {HOSTILE_SCRIPT}")
    for line in range(800):
        print(f"rank {rank}, line {line}" + (f": {NEEDLE}" if line == 600 else ""))
    for step in range(1, config["steps"] + 1):
        if rank == 1 and is_first and step == config["kill_at"]:
            print("the last words of rank 1", flush=True)
            os.kill(os.getpid(), signal.SIGKILL)
        metrics = {"loss": 1 / step, "epoch": 1}
        if step in (2, 4):
            with tempfile.TemporaryDirectory(dir=config["scratch"]) as folder:
                Path(folder, "weights.bin").write_bytes(bytes(1000))
                train.report(metrics, checkpoint=Checkpoint.from_directory(folder))
        else:
            train.report(metrics)


def _objective(config: dict[str, Any]) -> None:
    for step in range(1, 6):
        train.report({"loss": abs(config["lr"] - 0.03) * 3 + (0.05 if config["act"] == "relu" else 0) + 1 / step})


WORKING = """
import sys, time
from pathlib import Path
from paceline import train

root, hostile = sys.argv[1:]

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

train.DataParallelTrainer(
    work, scaling_config=train.ScalingConfig(1), run_config=train.RunConfig(name="working", storage_path=root),
).fit()
"""


def working(root: Path, scratch: Path) -> "subprocess.Popen[bytes]":
    """A run that goes on until somebody stops it, much of the time in a function with a hostile name."""
    script = scratch / "working.py"
    script.write_text(WORKING)
    return subprocess.Popen([sys.executable, str(script), str(root), HOSTILE], cwd=scratch)


SEARCHING = """
import sys, time
from pathlib import Path
from paceline import train, tune

root, gate = sys.argv[1:]

def objective(config):
    for step in range(1, 4):
        while not Path(gate, str(step)).exists():
            time.sleep(0.01)
        train.report({"loss": config["lr"] / step})

tune.Tuner(
    objective, param_space={"lr": tune.grid_search([0.6, 0.9])},
    tune_config=tune.TuneConfig(metric="loss", mode="min", max_concurrent_trials=2),
    run_config=train.RunConfig(name="searching", storage_path=root),
).fit()
"""


def searching(root: Path, gate: Path, scratch: Path) -> "subprocess.Popen[bytes]":
    """A search of two trials, whose reports are made when files with their numbers are in `gate`."""
    script = scratch / "searching.py"
    script.write_text(SEARCHING)
    return subprocess.Popen([sys.executable, str(script), str(root), str(gate)], cwd=scratch)
