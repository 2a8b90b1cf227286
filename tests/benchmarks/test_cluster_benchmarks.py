"""The benchmarks on a Ray cluster still run, our half of them: small ones, whose numbers mean nothing."""

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
SMALL = {"cluster_noop": (), "cluster_report": ("--reports", "20"), "cluster_recovery": ()}


@pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="Ray is not installed")
@pytest.mark.parametrize(
    "name",
    [
        "cluster_recovery",
        pytest.param("cluster_noop", marks=pytest.mark.chaos),
        pytest.param("cluster_report", marks=pytest.mark.chaos),
    ],
)
@pytest.mark.timeout(600)
def test_a_small_round_gives_a_number(name: str, tmp_path: Path) -> None:
    results = tmp_path / "results.json"
    options = ("--repeats", "1", "--no-ray", "--storage", str(tmp_path), "--json", str(results))
    # What Ray starts goes a while after its driver does; the benchmark itself fails if workers of ours stay.
    environ = {name: value for name, value in os.environ.items() if name != "PACELINE_TEST_SESSION"}
    with (tmp_path / "said").open("w+") as said:
        command = [sys.executable, str(BENCHMARKS / f"{name}.py"), *options, *SMALL[name]]
        ended = subprocess.run(command, stdout=said, stderr=said, timeout=580, env=environ)
        said.seek(0)
        assert ended.returncode == 0, said.read()
    [measure] = json.loads(results.read_text())["measures"]
    assert measure["ours"]["samples"]
    assert min(measure["ours"]["samples"]) > 0
