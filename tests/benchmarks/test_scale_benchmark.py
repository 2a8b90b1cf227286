"""The benchmark of scale still runs, and what it says of the cost of an event holds on any machine."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "scale.py"
SMALL = ("--workers", "100", "4000", "--seconds", "12", "--events", "20000", "--save-every", "10")
ALLOWED = 3.0
"""Processor time on a machine that others use too; what grows with the number of workers does so by far more."""


@pytest.mark.timeout(300)
def test_an_event_costs_the_same_with_forty_times_as_many_workers(tmp_path: Path) -> None:
    results = tmp_path / "results.json"
    options = ("--repeats", "1", "--storage", str(tmp_path), "--json", str(results))
    with (tmp_path / "said").open("w+") as said:
        command = [sys.executable, str(SCRIPT), *options, *SMALL]
        ended = subprocess.run(command, stdout=said, stderr=said, timeout=280, env={**os.environ})
        said.seek(0)
        text = said.read()
    assert ended.returncode == 0, text
    rate, growth = json.loads(results.read_text())["measures"]
    assert rate["ours"]["median"] > 0
    assert growth["ours"]["median"] < ALLOWED, text
