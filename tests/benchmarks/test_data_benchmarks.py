"""The benchmarks of datasets still run: small ones, whose numbers mean nothing."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
SMALL = {
    "data_tabular": ("--rows", "20000", "--files", "3"),
    "data_images": ("--rows", "34", "--files", "2"),
    "data_shuffle": ("--rows", "20000", "--files", "2"),
    "data_resume": ("--rows", "130000", "--files", "2", "--times", "1", "--pause-s", "0"),
    "data_wait": ("--steps", "4", "--step-ms", "1"),
    "data_memory": ("--files", "1", "--step-ms", "0", "--times", "2"),
}


@pytest.mark.parametrize("name", SMALL)
@pytest.mark.timeout(300)
def test_a_small_round_gives_a_number_for_every_bar(name: str, tmp_path: Path) -> None:
    results = tmp_path / "results.json"
    options = ("--repeats", "1", "--no-ray", "--storage", str(tmp_path), "--json", str(results))
    with (tmp_path / "said").open("w+") as said:
        command = [sys.executable, str(BENCHMARKS / f"{name}.py"), *options, *SMALL[name]]
        ended = subprocess.run(command, stdout=said, stderr=said, timeout=280, env={**os.environ})
        said.seek(0)
        assert ended.returncode == 0, said.read()
    measures = json.loads(results.read_text())["measures"]
    assert measures
    # What has no bar stands beside one that has.
    assert measures[0]["bar"] is not None
    assert all((measure["bar"] is None) == (measure["met"] is None) for measure in measures)
    assert all(len(measure["ours"]["samples"]) >= 1 for measure in measures)
