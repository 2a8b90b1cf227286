"""Runs to look at, and what tests ask of a page."""

import tempfile
from pathlib import Path
from typing import Any

import pytest

from paceline import train
from paceline.train import Checkpoint, DataParallelTrainer, FailureConfig, RunConfig, ScalingConfig

HOSTILE = "<img src=x onerror=\"document.title='taken over'\">"
"""A metric's name, as somebody might choose it who means no good."""


def make_runs(root: Path) -> None:
    fit(root, "short", {"lr": 0.1, "steps": 40})
    fit(root, "long", {"lr": 0.01, "steps": 120})
    with pytest.raises(train.TrainingFailedError):
        fit(root, "broken", {"lr": 9.0, "steps": 5, "breaks": True})


def fit(root: Path, name: str, config: dict[str, Any], num_workers: int = 2) -> Any:
    scratch = root.parent / f"scratch-{root.name}"
    scratch.mkdir(exist_ok=True)
    return DataParallelTrainer(
        _train,
        train_loop_config={**config, "scratch": str(scratch)},
        scaling_config=ScalingConfig(num_workers),
        run_config=RunConfig(name=name, storage_path=root, failure_config=FailureConfig(max_failures=0)),
    ).fit()


def _train(config: dict[str, Any]) -> None:
    rank = train.get_context().get_world_rank()
    for step in range(1, config["steps"] + 1):
        print(f"rank {rank} is at step {step}")
        loss = 2.0 / (1 + config["lr"] * step) + (0.05 if step % 7 == 0 else 0.0)
        metrics = {
            "loss": loss,
            "train": {"accuracy": 1 - loss / 2.1, "lr": config["lr"] * 0.99**step},
            "eval": {"loss": float("nan") if step == 5 else loss * 1.1, "zero or less": 3.0 - step},
            HOSTILE: float(step),
        }
        if config.get("breaks") and step == 2:
            raise RuntimeError("the loss is <b>nan</b>")
        if step % 20 == 0 and rank == 0:
            with tempfile.TemporaryDirectory(dir=config["scratch"]) as folder:
                Path(folder, "weights.bin").write_bytes(bytes(1000))
                train.report(metrics, checkpoint=Checkpoint.from_directory(folder))
        else:
            train.report(metrics)


def described(page: Any, title: str) -> str:
    """A plot, as it is told to those who do not see it."""
    text: str = page.locator(f'[data-plot="{title}"] .plot-area p').inner_text()
    return text


def wait_described(page: Any, title: str, text: str) -> None:
    """Until a plot says this."""
    page.wait_for_function(
        "([title, text]) => [...document.querySelectorAll('[data-plot]')].some((plot) => plot.dataset.plot === title"
        " && plot.querySelector('.plot-area p').textContent.includes(text))",
        arg=[title, text],
    )


DRAWN = """
([title, begin, end, steps]) => {
  const area = document.querySelector(`[data-plot="${title}"] .plot-area`);
  const canvas = area?.querySelector("canvas");
  const over = area?.querySelector(".u-over");
  if (!canvas?.width || !over?.clientWidth) return null;
  const ratio = canvas.width / canvas.clientWidth;
  const copy = document.createElement("canvas");
  [copy.width, copy.height] = [canvas.width, canvas.height];
  const pen = copy.getContext("2d", { willReadFrequently: true });
  pen.drawImage(canvas, 0, 0);
  const [part, base] = [over.getBoundingClientRect(), canvas.getBoundingClientRect()];
  return steps.map((step) => {
    const x = Math.round((part.left - base.left + (part.width * (step - begin)) / (end - begin)) * ratio);
    const { data } = pen.getImageData(x, (part.top - base.top) * ratio, 1, part.height * ratio);
    // The first line is blue, and nothing else is.
    for (let at = 0; at < data.length; at += 4) if (data[at + 3] > 60 && data[at + 2] - data[at] > 60) return true;
    return false;
  });
}
"""


def wait_drawn(page: Any, title: str, span: tuple[float, float], expected: dict[float, bool]) -> None:
    """Until a plot of these x has a line at some of them, and none at others."""
    page.wait_for_function(
        f"([asked, expected]) => JSON.stringify(({DRAWN})(asked)) === JSON.stringify(expected)",
        arg=[[title, *span, list(expected)], list(expected.values())],
    )


def wait_rows(page: Any, count: int) -> None:
    """Until the list has so many runs."""
    page.wait_for_function("(count) => document.querySelectorAll('tbody tr').length === count", arg=count)
