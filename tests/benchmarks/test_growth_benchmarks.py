"""The benchmarks of growth still run: small ones, whose numbers mean nothing."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
SMALL = {
    "growth_workers": ("--workers", "2", "--no-cold", "--fits", "3", "--reports", "40", "--without", "torchrun"),
    "growth_dataset": ("--times", "2", "--peer-times", "2", "--file-rows", "1500"),
    "growth_journal": ("--reports", "100"),
}


def found(name: str, tmp_path: Path) -> dict[str, Any]:
    results = tmp_path / "results.json"
    options = ("--repeats", "1", "--storage", str(tmp_path), "--json", str(results))
    with (tmp_path / "said").open("w+") as said:
        command = [sys.executable, str(BENCHMARKS / f"{name}.py"), *options, *SMALL[name]]
        ended = subprocess.run(command, stdout=said, stderr=said, timeout=280, env={**os.environ})
        said.seek(0)
        assert ended.returncode == 0, said.read()
    document: dict[str, Any] = json.loads(results.read_text())
    return document


@pytest.mark.parametrize("name", SMALL)
@pytest.mark.timeout(300)
def test_every_curve_has_a_number(name: str, tmp_path: Path) -> None:
    curves = found(name, tmp_path)["curves"]
    assert len(curves) >= 4
    place = float(SMALL[name][1])
    for curve in curves:
        (point,) = curve["ours"]
        assert point["x"] == place, curve["name"]
        assert point["median"] > 0, curve["name"]
