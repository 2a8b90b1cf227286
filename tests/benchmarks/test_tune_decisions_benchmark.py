"""The benchmark of schedulers still runs, and a decision does not cost what it would if every trial were looked at."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "tune_decisions.py"
SMALL = ("--trials", "300", "--reports", "1500")


@pytest.mark.timeout(300)
def test_a_decision_costs_less_than_a_millisecond(tmp_path: Path) -> None:
    results = tmp_path / "results.json"
    options = ("--repeats", "1", "--no-ray", "--storage", str(tmp_path), "--json", str(results))
    with (tmp_path / "said").open("w+") as said:
        command = [sys.executable, str(SCRIPT), *options, *SMALL]
        ended = subprocess.run(command, stdout=said, stderr=said, timeout=280, env={**os.environ})
        said.seek(0)
        text = said.read()
    assert ended.returncode == 0, text
    found = json.loads(results.read_text())
    assert len(found["measures"]) >= 7
    # The mean: of the slowest one in a thousand, a busy machine has its part.
    means = dict(part.strip().rsplit(" ", 2)[:2] for part in found["notes"]["mean"].split(";"))
    assert {"ASHA", "HyperBand", "PBT"} <= means.keys()
    assert all(float(mean) < 1000 for mean in means.values()), text
