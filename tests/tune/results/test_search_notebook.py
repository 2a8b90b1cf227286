"""A search in a notebook, with a real kernel: one table in the cell's output, brought up to date in place."""

import re

from real_kernel import client_of, execute

CELL = """
import time
from paceline import tune
from paceline.train import RunConfig


def trial(config):
    print("trains", config["<b>x</b>"])
    for step in range(4):
        time.sleep(0.15)
        if config["<b>x</b>"] == 2 and step == 1:
            raise ValueError("no such row")
        tune.report({"loss": (config["<b>x</b>"] - 3) ** 2 + 1 / (step + 1)})


results = tune.Tuner(
    trial,
    param_space={"<b>x</b>": tune.grid_search([1, 2, 3])},
    tune_config=tune.TuneConfig(metric="loss", mode="min", max_concurrent_trials=1),
    run_config=RunConfig(name="mnist", storage_path="runs"),
).fit()
"""

REFUSES = """
from IPython.display import DisplayHandle
def refuse(self, data, **given):
    raise RuntimeError("the front end is gone")
DisplayHandle.update = refuse
"""


def test_a_search_has_one_table_that_ends_as_its_last_state(tmp_path, monkeypatch):
    outputs, _, refused = execute(client_of([CELL, REFUSES, CELL.replace("mnist", "other")], tmp_path, monkeypatch))
    tables = [output for output in outputs if output.output_type == "display_data"]
    assert len(tables) == 1, outputs
    text, html = tables[0].data["text/plain"], tables[0].data["text/html"]
    assert re.match(r"search mnist  3 trials, [\d:.]+( s)?", text), text
    assert "2 finished   1 failed" in text
    assert re.search(r"best \w{5}_00002  loss=0\.25  iteration 4  <b>x</b>=3", text), text
    assert "&lt;b&gt;x&lt;/b&gt;=3" in html
    assert "<b>" not in html
    printed = "".join(output.text for output in outputs if output.output_type == "stream" and output.name == "stdout")
    assert ["[" + line[7:] for line in printed.splitlines() if "trains" in line] == [
        f"[0000{number}] trains {number + 1}" for number in range(3)
    ]
    assert "_00001] ValueError: no such row" in printed
    said = "".join(output.text for output in outputs if output.output_type == "stream" and output.name == "stderr")
    assert "_00001 failed" in said, said
    assert "00000" not in said, "what the table shows was said, too"

    said = "".join(output.text for output in refused if output.output_type == "stream" and output.name == "stderr")
    assert said.count("live view unavailable (RuntimeError('the front end is gone'))") == 1, said
    assert "_00002" in said, "lines were to take the table's place"
