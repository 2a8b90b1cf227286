"""In a real kernel: the notebook of the examples works, and what the guide says of notebooks holds."""

import json
import os
import re
import signal
import threading
from pathlib import Path
from typing import Any

import pytest

from real_kernel import client_of, execute

NOTEBOOK = Path(__file__).parents[2] / "examples" / "notebook.ipynb"


def text_of(outputs: Any, kind: str = "text/plain") -> str:
    """All that a cell printed and displayed."""
    parts = (each.text if each.output_type == "stream" else each.data.get(kind, "") for each in outputs)
    return "".join(parts)


@pytest.mark.timeout(900)
@pytest.mark.slow
def test_the_notebook_works_from_top_to_bottom(tmp_path, monkeypatch):
    _, _, run, frame, curve, plane, search, table, later = execute(client_of(NOTEBOOK, tmp_path, monkeypatch))
    assert "finished" in text_of(run), run
    assert "39" in text_of(frame)
    assert text_of(curve, "image/png")
    assert text_of(plane, "image/png")
    assert re.search(r"^best learning rate: 0\.0[13]$", text_of(search), re.MULTILINE), search
    assert re.search(r"^search \S+  6 trials", text_of(search), re.MULTILINE), search
    assert text_of(table).count("\n") == 6
    assert re.search(r" 4$", text_of(table), re.MULTILINE), "a bad one ended early"
    assert float(text_of(later)) > 0.9, "it has learned to tell them apart"
    assert len(list((tmp_path / "runs").iterdir())) == 2
    cells = [cell for cell in json.loads(NOTEBOOK.read_text())["cells"] if cell["cell_type"] == "code"]
    assert all(cell["outputs"] == [] and cell["execution_count"] is None for cell in cells), "stored without output"


CELLS = [
    """
import os, pathlib, signal, time
from paceline import train
from paceline.train import DataParallelTrainer, RunConfig
rate = 0.5
def fit(function, name=None, **scaling):
    config = RunConfig(name=name, storage_path="runs")
    return DataParallelTrainer(function, scaling_config={"num_workers": 2, **scaling}, run_config=config).fit()
def trained():
    return rate
seen = []
def changes():
    seen.append(train.get_context().get_world_size())
fit(changes), fit(changes, num_workers=0)
[fit(trained).return_value, fit(lambda: rate * 3).return_value, seen]
""",
    """
rate = 0.25
def trained():
    return rate + 1
[fit(trained, "again").return_value, fit(trained, "again").return_value, fit(trained).return_value]
""",
    """
pathlib.Path("mine.py").write_text("def value():\\n    return 'old'\\n")
import mine
first = fit(mine.value).return_value
pathlib.Path("mine.py").write_text("def value():\\n    return 'new, and longer'\\n")
[first, fit(mine.value).return_value, fit(lambda: mine.value()).return_value, mine.value()]
""",
    """
def endless():
    step = train.get_checkpoint().to_dict()["step"] if train.get_checkpoint() else 0
    while step < 10_000:
        step += 1
        if step == 3:
            pathlib.Path("interrupt-me").touch()
        time.sleep(0.01)
        train.report({"step": step}, checkpoint=train.Checkpoint.from_dict({"step": step}))
try:
    fit(endless, "endless")
except train.TrainingInterrupt as interrupt:
    stopped = interrupt.result
[stopped.metrics["step"] == stopped.checkpoint.to_dict()["step"] >= 2, stopped.status]
""",
    "1 + 1",
]


@pytest.mark.timeout(900)
def test_the_guides_statements_on_notebooks_hold(tmp_path, monkeypatch):
    client = client_of(CELLS, tmp_path, monkeypatch)
    done = threading.Event()

    def interrupt():
        while not (tmp_path / "interrupt-me").exists():
            if done.wait(0.05):
                return
        os.kill(client.km.provisioner.pid, signal.SIGINT)

    interrupting = threading.Thread(target=interrupt)
    interrupting.start()
    try:
        cells, rerun, reloaded, stopped, after = [text_of(each[-1:]) for each in execute(client)]
    finally:
        done.set()
        interrupting.join()
    assert cells == "[0.5, 1.5, [1]]", "with the values of now; what workers change stays there"
    assert rerun == "[1.25, 1.25, 1.25]"
    assert reloaded == "['old', 'new, and longer', 'new, and longer', 'old']", "workers import what is on disk now"
    assert stopped == "[True, 'stopped']", "an interrupt stops the run at a report, and the error has the result"
    assert after == "2", "and the kernel goes on"
