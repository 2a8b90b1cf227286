"""The benchmark of searches still runs, and fails where trials do not."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "tune_trials.py"


@pytest.mark.timeout(120)
def test_a_search_of_few_trials_is_timed(tmp_path: Path) -> None:
    results = tmp_path / "results.json"
    options = ("--repeats", "1", "--no-ray", "--storage", str(tmp_path), "--json", str(results))
    command = [sys.executable, str(SCRIPT), *options, "--trials", "2", "--many", "3"]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=110)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    found = json.loads(results.read_text())
    assert [measure["name"] for measure in found["measures"]] == ["2 trials", "3 trials"]
    assert all(0 < measure["ours"]["samples"][0] < 60 for measure in found["measures"])
