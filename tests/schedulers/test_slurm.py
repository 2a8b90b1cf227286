"""Jobs that `paceline launch slurm` submits, on a real Slurm of two hosts: they end, come back and leave nothing."""

import contextlib
import os
import re
import shutil
import sys
from pathlib import Path

import pytest
from guide import read_commands, write_project
from network import SHARED
from slurm import LIMIT_S

from processes import wait_until

HERE = Path(__file__).parent


class Job:
    def __init__(self, slurm, name, number, output):
        self._slurm = slurm
        self._path = slurm.shared / name
        self.output = output
        self.number = number

    @classmethod
    def launch(cls, slurm, name, num_nodes, *options):
        script = shutil.copy(HERE / "train_until_told.py", slurm.shared)
        common = ["--nodes", num_nodes, "--cpus-per-node", 2, "--output", f"{name}.out", "--grace", 30]
        number = slurm.launch(*common, *options, Path(script).name, name, num_nodes * 2)
        return cls(slurm, name, number, slurm.shared / f"{name}.out")

    def read(self):
        """Steps at which workers started, and the last that was made."""
        path = self._path.with_suffix(".steps")
        lines = path.read_text().splitlines() if path.exists() else []
        starts = [int(line.removeprefix("from ")) for line in lines if line.startswith("from")]
        return starts, max((int(line) for line in lines if not line.startswith("from")), default=0)

    def wait_for_start(self, number):
        """Wait until workers have started for the n-th time, and made three steps."""

        def has_made_steps():
            state = self._slurm.show_job(self.number)["JobState"]
            assert state not in ("FAILED", "COMPLETED", "CANCELLED"), f"{state}\n{self.output.read_text()}"
            starts, step = self.read()
            return len(starts) == number and step >= starts[-1] + 3

        wait_until(has_made_steps, LIMIT_S)

    def finish(self):
        """Let it end; return the steps of its metrics."""
        self._path.with_suffix(".finish").touch()
        self._slurm.wait_for_state(self.number, "COMPLETED", "FAILED", "CANCELLED")
        assert self._slurm.show_job(self.number)["JobState"] == "COMPLETED", self.output.read_text()
        return [int(step) for step in self._path.with_suffix(".rows").read_text().split()]


def assert_nothing_is_left(slurm):
    with contextlib.suppress(AssertionError):
        wait_until(lambda: not slurm.find_left_over(), 60)
    assert slurm.find_left_over() == []


def send_notice(slurm, job):
    """What Slurm does before the time limit of a job with --signal=B:USR1@30."""
    slurm.run("scancel", "--batch", "--signal=USR1", job.number)


def start_important_job(slurm, job):
    """Slurm preempts what runs on these nodes: its steps get TERM, and all of it is killed 20 s later."""
    slurm.run("sbatch", "--partition=high", "--nodes=2", "--cpus-per-task=4", "--wrap=true", "--output=/dev/null")


@pytest.mark.parametrize("disturb", [send_notice, start_important_job])
@pytest.mark.parametrize("num_nodes", [1, 2])
def test_a_job_that_has_to_end_comes_back_and_continues_at_its_last_step(slurm, request, num_nodes, disturb):
    job = Job.launch(slurm, f"{disturb.__name__}-{num_nodes}", num_nodes, "--requeue")
    job.wait_for_start(1)
    disturb(slurm, job)
    job.wait_for_start(2)
    starts, _ = job.read()
    assert starts[1] > starts[0] == 0
    rows = job.finish()
    assert rows == list(range(1, len(rows) + 1)), "no step was lost or repeated"
    assert slurm.show_job(job.number)["Restarts"] == "1", job.output.read_text()
    assert_nothing_is_left(slurm)


@pytest.mark.parametrize("num_nodes", [1, 2])
def test_a_cancelled_job_saves_its_last_step_does_not_come_back_and_leaves_nothing(slurm, num_nodes):
    job = Job.launch(slurm, f"cancelled-{num_nodes}", num_nodes, "--requeue")
    job.wait_for_start(1)
    slurm.run("scancel", job.number)
    slurm.wait_for_state(job.number, "CANCELLED")
    assert_nothing_is_left(slurm)
    assert slurm.show_job(job.number)["JobState"] == "CANCELLED"
    assert list((slurm.shared / "runs" / f"cancelled-{num_nodes}").glob("checkpoint_*")), job.output.read_text()


def test_a_job_without_ray_on_its_nodes_fails_and_says_so(slurm):
    bare = slurm.shared / "python-without-ray"
    bare.write_text(f'#!/bin/sh\nexec {sys.executable} -S "$@"\n')
    bare.chmod(0o755)
    job = Job.launch(slurm, "without-ray", 2, "--python", f"./{bare.name}")
    slurm.wait_for_state(job.number, "FAILED")
    assert "No module named 'ray'" in job.output.read_text()
    assert_nothing_is_left(slurm)


def test_the_command_of_the_guide(slurm):
    project = slurm.shared / "project"
    write_project(project, "guide", 2, SHARED)
    (project / ".venv").symlink_to(sys.prefix)
    (command,) = read_commands("Slurm")
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    printed = slurm.run("bash", "-c", command, place=SHARED / "project", env={"PATH": path})
    assert re.fullmatch(r"submitted train as job \d+\n", printed)
    number = printed.split()[-1]
    job = Job(slurm, "guide", number, project / f"slurm-{number}.out")
    job.wait_for_start(1)
    about = slurm.show_job(number)
    assert (about["NumNodes"], about["TimeLimit"], about["TresPerNode"]) == ("2", "1-00:00:00", "gres:gpu:1")
    rows = job.finish()
    assert rows == list(range(1, len(rows) + 1))
    assert_nothing_is_left(slurm)
