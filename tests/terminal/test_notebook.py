"""A run in a notebook, with a real kernel: one block in the cell's output, brought up to date in place."""

import re

from real_kernel import client_of, execute

CELL = """
import time
from paceline import train
from paceline.train import DataParallelTrainer, RunConfig, ScalingConfig


def trained(config):
    for epoch in range(8):
        print("epoch", epoch)
        time.sleep(0.15)
        train.report({"epoch": epoch, "<b>loss</b>": 1 / (epoch + 1)})


result = DataParallelTrainer(
    trained,
    train_loop_config={"num_epochs": 8},
    scaling_config=ScalingConfig(num_workers=1),
    run_config=RunConfig(name="resnet", storage_path="runs"),
).fit()
"""


def test_a_run_has_one_block_that_ends_as_its_last_state(tmp_path, monkeypatch):
    outputs, others = execute(client_of([CELL, "result.metrics['epoch']"], tmp_path, monkeypatch))
    blocks = [output for output in outputs if output.output_type == "display_data"]
    assert len(blocks) == 1, outputs
    text, html = blocks[0].data["text/plain"], blocks[0].data["text/html"]
    assert re.match(r"run resnet  finished  [\d:]+( s)?\n  report 8\n", text), text
    assert re.search(r"  <b>loss</b>  0\.125  [▁-█]+\n", text)
    assert "&lt;b&gt;loss&lt;/b&gt;" in html
    assert "<b>" not in html
    printed = "".join(output.text for output in outputs if output.output_type == "stream" and output.name == "stdout")
    assert printed == "".join(f"[rank 0] epoch {epoch}\n" for epoch in range(8))
    log = "".join(output.text for output in outputs if output.output_type == "stream" and output.name == "stderr")
    assert [line.partition(" after ")[0] for line in log.splitlines()] == [
        log.splitlines()[0],
        "paceline: run resnet finished",
    ]
    assert others[0].data["text/plain"] == "7"
