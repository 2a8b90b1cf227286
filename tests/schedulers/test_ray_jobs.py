"""`ray job submit` to the dashboard of a real cluster, on a host of its own, with the commands of the guide."""

import contextlib
import os
import subprocess
import sys
from pathlib import Path

import pytest
from guide import read_commands, write_project
from network import SHARED, Network, missing_tools

from processes import wait_until

RAY = str(Path(sys.executable).with_name("ray"))
JOBS = "http://127.0.0.1:8265"
LIMIT_S = 240
PATIENT = {"RAY_DASHBOARD_STARTUP_TIMEOUT_S": "240", "RAY_DASHBOARD_SUBPROCESS_MODULE_WAIT_READY_TIMEOUT": "200"}
"""On a busy machine, the dashboard's processes start slowly."""
WITH_PYTHON = {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}


@pytest.fixture
def head(tmp_path):
    for package in ("aiohttp_cors", "colorful", "opencensus"):
        pytest.importorskip(package, reason="ray[default] is not installed (make test-ray does): no job was submitted")
    if missing := missing_tools():
        pytest.skip(f"no hosts can be made here without {missing}: no job was submitted")
    network = Network(tmp_path, 1)
    try:
        network.hosts[0].start_ray("--include-dashboard=true", num_cpus=4, env={**WITH_PYTHON, **PATIENT})
        wait_until(lambda: ask(network.hosts[0], "list") is not None, LIMIT_S)
        yield network.hosts[0]
    finally:
        network.close()


def ask(head, command, *arguments):
    """The answer of `ray job`; None if it fails."""
    with contextlib.suppress(AssertionError):
        return head.run(RAY, "job", command, "--address", JOBS, *arguments)
    return None


class Guide:
    """The commands of the guide, run one after the other in one directory."""

    def __init__(self, head, directory):
        self._head, self._directory = head, directory
        self._export, *self.commands = read_commands("`ray job submit`")
        assert self._export.startswith("export ")

    def start(self, command):
        script = f"cd {self._directory} && {self._export} && {command}"
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
        return self._head.popen("sh", "-c", script, env=WITH_PYTHON, **pipes)

    def run(self, command):
        process = self.start(command)
        output, _ = process.communicate(timeout=LIMIT_S)
        assert process.returncode == 0, output
        return output


class Job:
    def __init__(self, head, name):
        self._head, self._name = head, name

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
    write_project(shared / "project", "job", 2, SHARED)
    guide = Guide(head, SHARED / "project")
    submit, follow, stop, submit_again = guide.commands

    def read():
        path = shared / "job.steps"
        return path.read_text().splitlines() if path.exists() else []

    guide.run(submit)
    first = Job(head, "resnet-1")
    following = guide.start(follow)
    first.wait_until(lambda: "3" in read())
    guide.run(stop)
    first.wait_for_state("was stopped")
    assert "run job begins: 2 workers on the Ray cluster at" in following.communicate(timeout=LIMIT_S)[0]
    guide.run(submit_again)
    second = Job(head, "resnet-2")
    second.wait_until(lambda: sum(line.startswith("from") for line in read()) == 2)
    (shared / "job.finish").touch()
    second.wait_for_state("succeeded")
    start = next(place for place, line in enumerate(read()) if place > 0 and line.startswith("from"))
    step, last_noted = int(read()[start].removeprefix("from ")), int(read()[start - 1])
    assert step - last_noted in (0, 1), "where it was stopped"
    rows = (shared / "job.rows").read_text().split()
    assert rows == [str(step) for step in range(1, len(rows) + 1)]
