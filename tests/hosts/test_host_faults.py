"""Faults of hosts and of the network between them, in a run with a worker on each of three hosts.

Nothing reported is lost or counted twice, and the run ends as an undisturbed one, by itself.
"""

import contextlib
import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from network import SHARED

from processes import wait_until

HERE = Path(__file__).parent
STEPS = 60
LIMIT_S = 240


class Run:
    def __init__(self, network, name, driver):
        storage = SHARED / "runs"
        self.notes = network.shared / "runs" / f"{name}-notes"
        script = (HERE / "train_steps.py").read_text()
        (network.shared / "train_steps.py").write_text(script)
        self._process = driver.popen(
            *(sys.executable, SHARED / "train_steps.py", storage, name, STEPS),
            env={"RAY_ADDRESS": network.address},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def wait_for_step(self, step):
        def has_made_it():
            assert self._process.poll() is None, self._process.communicate()[1]
            with contextlib.suppress(FileNotFoundError):
                return str(step) in (self.notes / "steps").read_text().split()

        wait_until(has_made_it, LIMIT_S)

    def worker_on(self, host):
        """The process id of the worker on a host, as that host counts."""
        for note in self.notes.glob("rank_*"):
            about = json.loads(note.read_text())
            if about["host"] == host.name:
                return about["pid"]
        raise AssertionError(f"no worker on {host.name}")

    def finish(self):
        """Wait for the end; return what the driver said."""
        output, said = self._process.communicate(timeout=LIMIT_S)
        assert self._process.returncode == 0, said
        rows = json.loads(output.splitlines()[-1])
        assert rows["steps"] == list(range(1, STEPS + 1)), said
        value = 1.0
        for step, reported in enumerate(rows["values"]):
            value = value * 0.9 + step
            assert reported == pytest.approx(value)
        return said


@pytest.fixture
def start(network, request, fault_table):
    name = request.node.name.replace("[", "-").replace("]", "")
    fault = name.removeprefix("test_").replace("_", " ")
    with fault_table.trying(f"three hosts: {fault}"):
        yield lambda driver=0: Run(network, name, network.hosts[driver])


def test_a_killed_worker_on_another_host_is_replaced(start, hosts):
    run = start()
    run.wait_for_step(12)
    hosts[2].run("kill", "-9", run.worker_on(hosts[2]))
    assert "killed by SIGKILL" in run.finish()


def test_a_host_that_is_lost_is_replaced_by_what_is_left(start, hosts):
    run = start()
    run.wait_for_step(12)
    hosts[2].kill()
    said = run.finish()
    assert "host3" in said or hosts[2].address in said, said


@pytest.mark.parametrize(("seconds", "driver"), [(1, 0), (10, 0), (5, 2)], ids=["1-s", "10-s", "of-the-driver"])
def test_a_link_that_is_down_for_a_while_costs_nothing_that_was_reported(start, hosts, seconds, driver):
    run = start(driver)
    run.wait_for_step(12)
    hosts[2].set_link("down")
    time.sleep(seconds)  # the fault itself
    hosts[2].set_link("up")
    run.finish()


def test_a_link_that_stays_down(start, hosts):
    run = start()
    run.wait_for_step(12)
    hosts[2].set_link("down")
    said = run.finish()
    assert hosts[2].address in said or "host3" in said, said


def test_packets_lost_in_one_direction(start, hosts):
    run = start()
    run.wait_for_step(12)
    with hosts[2].dropping("-s", hosts[0].address):
        run.finish()


def test_a_tenth_of_all_packets_lost(start, hosts):
    rule = ("-i", "eth0", "-m", "statistic", "--mode", "random", "--probability", "0.1")
    with hosts[2].dropping(*rule):
        run = start()
        run.finish()


def test_workers_that_cannot_reach_each_other_do_not_need_to(start, hosts):
    with hosts[1].dropping("-s", hosts[2].address), hosts[2].dropping("-s", hosts[1].address):
        start().finish()


def test_a_full_disk_on_one_host(start, hosts):
    run = start()
    run.wait_for_step(12)
    hosts[2].run("sh", "-c", "head -c 3g /dev/zero > /tmp/full 2>/dev/null || true")
    try:
        run.finish()
    finally:
        hosts[2].run("rm", "/tmp/full")


def test_a_frozen_worker_of_another_host_is_waited_for(start, hosts):
    run = start()
    run.wait_for_step(12)
    pid = run.worker_on(hosts[1])
    hosts[1].run("kill", f"-{signal.SIGSTOP.value}", pid)
    time.sleep(2)  # the fault itself
    hosts[1].run("kill", f"-{signal.SIGCONT.value}", pid)
    run.finish()
