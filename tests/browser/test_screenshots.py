"""The pictures of the documentation, taken of real runs: `make screenshots`.

The same pages are looked at by the other tests here; this one makes nicer runs, and takes its time.
"""

import io
import math
import os
import random
import signal
import socket
import tempfile
from pathlib import Path
from typing import Any

import pytest
from in_browser import wait_described

from paceline import train, tune
from paceline.train import Checkpoint, CheckpointConfig, DataParallelTrainer, FailureConfig, RunConfig, ScalingConfig

TARGET = os.environ.get("PACELINE_SCREENSHOTS")

pytestmark = pytest.mark.skipif(not TARGET, reason="takes pictures for docs/: `make screenshots`")

# Where these tests were run is nobody's business.
ELSEWHERE = """(names) => {
  const texts = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (texts.nextNode()) for (const [name, other] of Object.entries(names)) {
    const text = texts.currentNode;
    if (text.data.includes(name)) text.data = text.data.replaceAll(name, other);
  }
}"""
COMPARED = "run=resnet18-sgd&run=resnet18-adamw&run=resnet18-cosine"
SHOTS: dict[str, tuple[str, int, int, bool]] = {
    "runs": ("#/?metric=eval/loss", 1280, 420, False),
    "metrics": ("#/run/resnet18-cosine/metrics?smooth=0.7", 1280, 860, True),
    "compare": (
        "#/compare?run=resnet18-sgd&run=resnet18-adamw&run=resnet18-cosine&smooth=0.8&f=loss",
        1280,
        560,
        False,
    ),
    "timeline": ("#/run/resnet18-cosine/timeline", 1280, 640, False),
    "search": ("#/run/sweep", 1280, 800, False),
    "narrow": ("#/run/resnet18-cosine/metrics?f=loss", 400, 760, True),
}


@pytest.mark.timeout(300)
def test_pictures_for_the_documentation(tmp_path, serve, look, going):
    root = tmp_path / "runs"
    make(root, tmp_path)
    going(root).step(40)
    shown = serve(root)
    page = look(shown.at())
    page.locator("tr", has_text="live").get_by_text("running").wait_for()
    for name, (place, width, height, is_dark) in SHOTS.items():
        page = look(shown.at(place), width, height, dark=is_dark)
        if "metrics" in place or "compare" in place:
            wait_described(page, "eval/loss", "at ")
        page.locator("[role=tabpanel] .guarded > *, main .card, main tbody tr").first.wait_for()
        page.evaluate(ELSEWHERE, {str(root): "/data/runs", socket.gethostname(): "gpu-1"})
        page.wait_for_timeout(700)
        save(page.screenshot(), Path(str(TARGET)) / f"dashboard-{name}.png")


def save(png: bytes, path: Path) -> None:
    from PIL import Image

    path.parent.mkdir(parents=True, exist_ok=True)
    image = Image.open(io.BytesIO(png)).convert("RGB").quantize(128, dither=Image.Dither.NONE)
    image.save(path, optimize=True)


def make(root: Path, scratch: Path) -> None:
    fit(root, scratch, "resnet18-sgd", rate=0.9, seed=1)
    fit(root, scratch, "resnet18-adamw", rate=1.6, seed=2)
    fit(root, scratch, "resnet18-cosine", rate=1.3, seed=3, kill_at=170)
    with pytest.raises(train.TrainingFailedError):
        fit(root, scratch, "vit-tiny", rate=0.4, seed=4, break_at=90)
    tune.Tuner(
        _objective,
        param_space={
            "lr": tune.grid_search([0.001, 0.003, 0.01, 0.03, 0.1]),
            "width": tune.grid_search([64, 128]),
            "act": tune.grid_search(["relu", "gelu"]),
        },
        tune_config=tune.TuneConfig(metric="loss", mode="min"),
        run_config=RunConfig(name="sweep", storage_path=root),
    ).fit()


def fit(root: Path, scratch: Path, name: str, **config: Any) -> None:
    DataParallelTrainer(
        _train,
        train_loop_config={"scratch": str(scratch), **config},
        scaling_config=ScalingConfig(2),
        run_config=RunConfig(
            name=name,
            storage_path=root,
            failure_config=FailureConfig(max_failures=0 if "break_at" in config else 1),
            checkpoint_config=CheckpointConfig(
                num_to_keep=2, checkpoint_score_attribute="eval/loss", checkpoint_score_order="min"
            ),
        ),
    ).fit()


def _train(config: dict[str, Any]) -> None:
    context = train.get_context()
    checkpoint = train.get_checkpoint()
    begin = 1
    if checkpoint is not None:
        with checkpoint.as_directory() as folder:
            begin = int(Path(folder, "step").read_text()) + 1
    for step in range(begin, 301):
        if step == config.get("kill_at") and context.get_world_rank() == 1 and checkpoint is None:
            os.kill(os.getpid(), signal.SIGKILL)
        if step == config.get("break_at"):
            raise RuntimeError("the loss is nan at step 90")
        noise = random.Random(f"{config['seed']} {step}")
        part = 1 - math.exp(-config["rate"] * step / 90)
        metrics = {
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
        if step % 50 == 0:
            with tempfile.TemporaryDirectory(dir=config["scratch"]) as folder:
                Path(folder, "step").write_text(str(step))
                train.report(metrics, checkpoint=Checkpoint.from_directory(folder))
        else:
            train.report(metrics)


def _objective(config: dict[str, Any]) -> None:
    off = (math.log10(config["lr"]) + 2) ** 2 * 0.25 + (0.1 if config["act"] == "relu" else 0) + 6 / config["width"]
    for step in range(1, 13):
        train.report({"loss": off + 1.5 / step})
