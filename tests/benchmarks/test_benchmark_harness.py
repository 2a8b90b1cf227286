"""The benchmarks' harness: a peer that did not run is a failure by name, one left out is reported."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
VERSIONS = '{"python": "3.12.1", "ray": "2.58.0", "torch": "2.13.0"}'

SMALL = """
from _measure import Bar, Bench, Measure, Report, main, read_rank_results

def measure(bench):
    peers = {}
    for number in bench.rounds():
        if bench.takes_part("ray", number):
            directory = bench.directory("ray")
            bench.run(bench.peer("ray", "peers/nothing.py", directory), directory, timeout_s=10)
            peers["Ray Train"] = [result["took"] for result in read_rank_results(directory)]
    return Report([Measure("small", "s", [1.0, 2.0], peers, Bar("<=", 0.5, ratio=True), {"nothing": [0.5]})])

main("a small one", measure, peers=("ray",), repeats=1)
"""


def run_small(tmp_path: Path, *arguments: str, peer: str | None = None) -> subprocess.CompletedProcess[str]:
    """Run a benchmark with one peer, whose interpreter knows its versions and otherwise runs this shell script."""
    (tmp_path / "small.py").write_text(SMALL)
    if peer is not None:
        path = tmp_path / ".venv-ray" / "bin" / "python"
        path.parent.mkdir(parents=True)
        path.write_text(f"#!/bin/sh\nif [ \"$1\" = -I ]; then echo '{VERSIONS}'; exit; fi\n{peer}\n")
        path.chmod(0o755)
    command = [sys.executable, str(tmp_path / "small.py"), "--environments", str(tmp_path)]
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join([str(BENCHMARKS), os.environ.get("PYTHONPATH", "")])}
    command += ["--storage", str(tmp_path / "storage"), "--json", str(tmp_path / "results.json"), *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=100, env=environ)


def test_a_peer_that_is_not_there_or_leaves_no_proof_fails_by_name(tmp_path):
    ended = run_small(tmp_path)
    assert ended.returncode == 1
    assert "FAILED: ray cannot run" in ended.stderr
    assert not (tmp_path / "storage").exists()
    ended = run_small(tmp_path, peer="exit 0")
    assert ended.returncode == 1
    assert "rank 0 has not left rank_0.json: it did not really run" in ended.stderr


def test_a_peer_that_ran_is_compared_and_one_that_is_left_out_is_reported(tmp_path):
    ended = run_small(tmp_path, peer="for rank in 0 1; do echo '{\"took\": 4.0}' > $2/rank_$rank.json; done")
    assert ended.returncode == 0, ended.stderr
    assert "ratio 0.375 [0.25 .. 0.5], bar ratio <= 0.5 met" in ended.stdout
    assert json.loads((tmp_path / "results.json").read_text())["peers"] == {"ray": json.loads(VERSIONS)}
    ended = run_small(tmp_path, "--without", "ray", "--repeats", "3", "--within", "0")
    assert ended.returncode == 0, ended.stderr
    assert "left out ray" in ended.stdout
    assert "rounds 1 of 3: there was no time for more" in ended.stdout
    results = json.loads((tmp_path / "results.json").read_text())
    assert results["without"] == ["ray"]
    assert results["measures"][0]["met"] is None


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_all_benchmarks_make_one_table(tmp_path):
    options = ["--only", "tune_trials", "--quick", "--without", "ray", "--storage", str(tmp_path)]
    results = tmp_path / "out" / "results.json"
    command = [sys.executable, str(BENCHMARKS / "all.py"), "--json", str(results), *options]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=280)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert "4 trials" in ended.stdout
    assert "seconds: tune_trials" in ended.stdout
    assert "LEFT OUT: ray" in ended.stdout
    assert json.loads(results.read_text())["took_s"].keys() == {"tune_trials"}


def test_every_benchmark_is_listed(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    monkeypatch.delitem(sys.modules, "all", raising=False)
    import all as every

    alone = {"all", "gpu", "keep", "plots", "short_table", "table"}
    assert {path.stem for path in BENCHMARKS.glob("[a-z]*.py")} - alone == set(every.EVERY)
