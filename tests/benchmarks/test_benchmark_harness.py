"""The benchmarks' harness: a peer that did not run is a failure by name, one left out is said, nothing hangs."""

import json
import os
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
VERSIONS = '{"python": "3.12.1", "ray": "2.58.0", "torch": "2.13.0"}'

SMALL = """
from _measure import Bar, Bench, Measure, Report, from_ranks, main

def measured(bench):
    (bench.storage.parent / "began").touch()
    peers = {}
    for number in bench.rounds():
        if bench.takes_part("ray", number):
            directory = bench.directory("ray")
            bench.run(bench.peer("ray", "peers/nothing.py", directory), directory, timeout_s=2)
            peers["Ray Train"] = [said["took"] for said in from_ranks(directory)]
    return Report([Measure("small", "s", [1.0, 2.0], peers, Bar("<=", 0.5, ratio=True), {"nothing": [0.5]})])

main("a small one", measured, peers=("ray",), repeats=1)
"""


@pytest.fixture
def small(tmp_path):
    """A benchmark with one peer: run it with arguments."""
    script = tmp_path / "small.py"
    script.write_text(SMALL)
    storage = tmp_path / "storage"

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, str(script), "--environments", str(tmp_path), "--storage", str(storage), *arguments]
        environ = {**os.environ, "PYTHONPATH": os.pathsep.join([str(BENCHMARKS), os.environ.get("PYTHONPATH", "")])}
        return subprocess.run(command, capture_output=True, text=True, timeout=60, env=environ)

    return run


def make_peer(directory: Path, does: str) -> Path:
    """An environment whose interpreter knows its versions, and otherwise does this."""
    path = directory / ".venv-ray" / "bin" / "python"
    path.parent.mkdir(parents=True)
    path.write_text(f"#!/bin/sh\nif [ \"$1\" = -I ]; then echo '{VERSIONS}'; exit; fi\n{does}\n")
    path.chmod(0o755)
    return path


def test_a_peer_that_is_not_there_fails_by_name_before_anything_is_measured(small, tmp_path):
    ended = small()
    assert ended.returncode == 1
    assert "FAILED: ray cannot run" in ended.stderr
    assert "--without ray" in ended.stderr
    assert not (tmp_path / "storage").exists()


def test_a_peer_whose_environment_is_broken_fails_by_name_before_anything_is_measured(small, tmp_path):
    path = tmp_path / ".venv-ray" / "bin" / "python"
    path.parent.mkdir(parents=True)
    path.write_text("#!/bin/sh\necho 'No module named ray' >&2\nexit 1\n")
    path.chmod(0o755)
    ended = small()
    assert ended.returncode == 1
    assert "ray cannot run: its environment is broken (No module named ray)" in ended.stderr
    assert not (tmp_path / "storage").exists()


def test_a_peer_that_ends_well_but_leaves_no_proof_did_not_run(small, tmp_path):
    make_peer(tmp_path, "exit 0")
    ended = small()
    assert ended.returncode == 1
    assert "rank 0 has not left rank_0.json: it did not really run" in ended.stderr


def test_a_peer_that_hangs_is_ended_and_fails_with_its_last_words(small, tmp_path):
    make_peer(tmp_path, 'echo about to hang\necho $$ > "$2.pid"\nsleep 600 &\necho $! >> "$2.pid"\nwait')
    ended = small("--keep")
    assert ended.returncode == 1
    assert "did not end within 2 s" in ended.stderr
    assert "about to hang" in ended.stderr
    [pids] = list((tmp_path / "storage").glob("*/*.pid"))
    assert not any(psutil.pid_exists(int(pid)) for pid in pids.read_text().split())


def test_a_peer_that_ran_is_compared_with(small, tmp_path):
    leave = "for rank in 0 1; do echo '{\"took\": 4.0}' > $2/rank_$rank.json; done"
    make_peer(tmp_path, leave)
    results = tmp_path / "results.json"
    ended = small("--json", str(results))
    assert ended.returncode == 0, ended.stderr
    assert "ratio 0.375 [0.25 .. 0.5], bar ratio <= 0.5 met" in ended.stdout
    found = json.loads(results.read_text())
    assert found["peers"] == {"ray": json.loads(VERSIONS)}
    assert found["without"] == []


def test_a_peer_that_is_left_out_is_said(small, tmp_path):
    results = tmp_path / "results.json"
    ended = small("--without", "ray", "--json", str(results))
    assert ended.returncode == 0, ended.stderr
    assert "left out ray" in ended.stdout
    assert "not decided" in ended.stdout
    found = json.loads(results.read_text())
    assert found["without"] == ["ray"]
    assert found["measures"][0]["met"] is None


def test_rounds_that_would_not_end_in_time_are_not_begun_and_that_is_said(small, tmp_path):
    ended = small("--without", "ray", "--repeats", "3", "--within", "0")
    assert ended.returncode == 0, ended.stderr
    assert "rounds 1 of 3: there was no time for more" in ended.stdout


def run_all(tmp_path: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(BENCHMARKS / "all.py"), "--json", str(tmp_path / "out" / "results.json"), *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=100)


def test_all_of_them_fail_before_the_first_if_a_peer_is_not_there(tmp_path):
    ended = run_all(tmp_path, "--environments", str(tmp_path))
    assert ended.returncode == 1
    assert "FAILED before anything was measured: torchrun cannot run" in ended.stderr
    assert "==" not in ended.stderr


@pytest.mark.timeout(120)
def test_a_benchmark_that_takes_too_long_is_ended_and_the_next_is_not_begun(tmp_path):
    options = ("--without", "ray", "--storage", str(tmp_path), "--minutes", "0.04")
    ended = run_all(tmp_path, "--only", "report_rate", "tune_decisions", *options)
    assert ended.returncode == 1
    assert "FAILED report_rate: ended, for it took longer than its 2 s" in ended.stdout
    assert "FAILED tune_decisions: not run: the minutes of all benchmarks were over" in ended.stdout
    assert "LEFT OUT: ray" in ended.stdout
    found = json.loads((tmp_path / "out" / "results.json").read_text())
    assert found["failed"].keys() == {"report_rate", "tune_decisions"}
    assert found["without"] == ["ray"]


@pytest.mark.timeout(120)
def test_searches_of_few_trials_are_timed_and_the_one_table_says_so(tmp_path):
    small = ("--trials", "2", "--many", "3", "--without", "ray", "--storage", str(tmp_path))
    ended = run_all(tmp_path, "--only", "tune_trials", "--quick", *small)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert "2 trials" in ended.stdout
    assert "forks" in ended.stdout
    assert "seconds: tune_trials" in ended.stdout
    found = json.loads((tmp_path / "out" / "results.json").read_text())
    assert found["took_s"].keys() == {"tune_trials"}
    measures = found["benchmarks"]["tune_trials"]["measures"]
    assert [measure["name"] for measure in measures] == ["2 trials", "3 trials"]
    assert all(0 < measure["ours"]["samples"][0] < 60 for measure in measures)
    assert all(measure["floor"]["forks"]["samples"] for measure in measures)


def test_every_benchmark_that_is_listed_is_there():
    listed = subprocess.run(
        [sys.executable, "-c", "import all; print(*all.EVERY)"],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(BENCHMARKS), os.environ.get("PYTHONPATH", "")])},
    ).stdout.split()
    assert [name for name in listed if not (BENCHMARKS / f"{name}.py").exists()] == []
    alone = {"all", "gpu", "keep", "plots", "short_table", "table"}
    assert {path.stem for path in BENCHMARKS.glob("[a-z]*.py")} - alone == set(listed)


def test_an_environment_of_nobody_is_refused():
    script = BENCHMARKS / "peers" / "make_env.sh"
    ended = subprocess.run(["sh", str(script), "nobody"], capture_output=True, text=True, timeout=30)
    assert ended.returncode != 0
    assert "no peer is called nobody" in ended.stderr
