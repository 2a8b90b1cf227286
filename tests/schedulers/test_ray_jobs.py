"""`ray job submit` to the dashboard of a real cluster, on a host of its own, with the commands of the guide."""

import contextlib
import json
import shutil
import sys
from pathlib import Path

import pytest
from network import SHARED, Network, missing_tools

from processes import wait_until

HERE = Path(__file__).parent
RAY = str(Path(sys.executable).with_name("ray"))
JOBS = "http://127.0.0.1:8265"
LIMIT_S = 120
STOP_WAIT = json.dumps({"env_vars": {"RAY_JOB_STOP_WAIT_TIME_S": "60"}})


@pytest.fixture
def head(tmp_path):
    for package in ("aiohttp_cors", "colorful", "opencensus"):
        pytest.importorskip(package, reason="ray[default] is not installed (make test-ray does): no job was submitted")
    if missing := missing_tools():
        pytest.skip(f"no hosts can be made here without {missing}: no job was submitted")
    network = Network(tmp_path, 1)
    try:
        network.hosts[0].start_ray("--include-dashboard=true", num_cpus=4)
        wait_until(lambda: ask(network.hosts[0], "list") is not None, LIMIT_S)
        yield network.hosts[0]
    finally:
        network.close()


def ask(head, command, *arguments):
    """The answer of `ray job`; None if it fails."""
    with contextlib.suppress(AssertionError):
        return head.run(RAY, "job", command, "--address", JOBS, *arguments)
    return None


class Job:
    def __init__(self, head, name, *script):
        self._head, self._name = head, name
        options = ["--submission-id", name, "--no-wait", "--runtime-env-json", STOP_WAIT]
        head.run(RAY, "job", "submit", "--address", JOBS, *options, "--", *script)

    def stop(self):
        self._head.run(RAY, "job", "stop", "--address", JOBS, self._name)

    def wait_until(self, condition):
        try:
            wait_until(condition, LIMIT_S)
        except AssertionError as error:
            answers = [ask(self._head, command, self._name) for command in ("status", "logs")]
            raise AssertionError(*answers) from error

    def wait_for_state(self, state):
        self.wait_until(lambda: f"'{self._name}' {state}" in (ask(self._head, "status", self._name) or ""))


def test_a_stopped_job_saves_its_last_step_and_the_next_one_continues_it(head, tmp_path):
    shared = tmp_path / "shared"
    shutil.copy(HERE / "train_until_told.py", shared)
    script = [sys.executable, SHARED / "train_until_told.py", "job", 2]

    def read():
        path = shared / "job.steps"
        return path.read_text().splitlines() if path.exists() else []

    first = Job(head, "job-1", *script)
    first.wait_until(lambda: "3" in read())
    first.stop()
    first.wait_for_state("was stopped")
    second = Job(head, "job-2", *script)
    second.wait_until(lambda: sum(line.startswith("from") for line in read()) == 2)
    (shared / "job.finish").touch()
    second.wait_for_state("succeeded")
    start = next(place for place, line in enumerate(read()) if place > 0 and line.startswith("from"))
    step, last_noted = int(read()[start].removeprefix("from ")), int(read()[start - 1])
    assert step - last_noted in (0, 1), "where it was stopped"
    rows = (shared / "job.rows").read_text().split()
    assert rows == [str(step) for step in range(1, len(rows) + 1)]
