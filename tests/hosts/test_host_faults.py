"""Faults of hosts and of the network between them, in a run with a worker on each of three hosts.

Nothing reported is lost or counted twice, and the run ends as an undisturbed one, by itself.
"""

import signal
import sys
import time

import pytest
from host_runs import STEPS

pytestmark = pytest.mark.seeds(20, few=0)


TIME_ROUND_TRIP = """
import contextlib, socket, sys, time
start = time.monotonic()
with contextlib.suppress(ConnectionRefusedError):
    socket.create_connection((sys.argv[1], 1))
print(time.monotonic() - start)
"""


def strike_step(dice):
    return dice.randint(6, 24)


def test_a_killed_worker_on_another_host_is_replaced(start, hosts, dice):
    with start("worker killed") as run:
        run.wait_for_step(strike_step(dice))
        hosts[2].run("kill", "-9", run.worker_on(hosts[2]))
        assert "killed by SIGKILL" in run.finish()
        run.trial.seconds, run.trial.told_s = run.seconds_without_step(), run.seconds_to_say("killed by SIGKILL")


def test_a_host_that_is_lost_is_replaced_by_what_is_left(start, hosts, dice):
    with start("host lost") as run:
        run.wait_for_step(strike_step(dice))
        hosts[2].kill()
        run.finish()
        run.trial.seconds, run.trial.told_s = run.seconds_without_step(), run.seconds_to_say("host3", hosts[2].address)


DOWN = {
    "a worker's host cut off for 1 s": (1, 0),
    "a worker's host cut off for 10 s": (10, 0),
    "a worker's host cut off for 30 s": (30, 0),
    "the driver's host cut off for 5 s": (5, 2),
}
NOTICED_S = 20
"""A link that is down for so long is reported."""


@pytest.mark.parametrize("fault", DOWN)
def test_a_link_that_is_down_for_a_while_costs_nothing_that_was_reported(start, hosts, dice, fault):
    seconds, driver = DOWN[fault]
    with start(fault, driver) as run:
        run.wait_for_step(strike_step(dice))
        hosts[2].set_link("down")
        time.sleep(seconds)  # the fault itself
        hosts[2].set_link("up")
        run.finish()
        run.trial.seconds = run.seconds_without_step()
        if seconds > NOTICED_S:
            run.trial.told_s = run.seconds_to_say("no answer from host3")


def test_a_link_that_stays_down(start, hosts, dice):
    with start("a worker's host cut off for good") as run:
        run.wait_for_step(strike_step(dice))
        hosts[2].set_link("down")
        said = run.finish()
        assert "holds the GIL" not in said, "it may be silent for long enough to be reported as hung"
        run.trial.seconds, run.trial.told_s = run.seconds_without_step(), run.seconds_to_say("host3", hosts[2].address)


def test_packets_lost_in_one_direction(start, hosts, dice):
    with start("packets lost in one direction") as run:
        run.wait_for_step(strike_step(dice))
        with hosts[2].dropping("-s", hosts[0].address):
            run.finish()
        run.trial.seconds, run.trial.told_s = run.seconds_without_step(), run.seconds_to_say("host3", hosts[2].address)


def test_a_tenth_of_all_packets_lost(start, hosts, dice):
    rule = ("-i", "eth0", "-m", "statistic", "--mode", "random", "--probability", "0.1")
    with hosts[2].dropping(*rule), start("a tenth of all packets lost") as run:
        run.finish()


def test_workers_that_cannot_reach_each_other_do_not_need_to(start, hosts, dice):
    with (
        hosts[1].dropping("-s", hosts[2].address),
        hosts[2].dropping("-s", hosts[1].address),
        start("workers that cannot reach each other") as run,
    ):
        run.finish()


def test_a_full_disk_on_one_host(start, hosts, dice):
    with start("temporary files of a host full", pace_s=0.3) as run:
        run.wait_for_step(strike_step(dice))
        hosts[2].run("sh", "-c", "head -c 3g /dev/zero > /tmp/full 2>/dev/null || true")
        try:
            _, last, _ = run.steps()[-1]
            assert last < STEPS - 5, "the next checkpoint is saved with a full disk"
            run.finish()
        finally:
            hosts[2].run("rm", "/tmp/full")


def test_a_frozen_worker_of_another_host_is_waited_for(start, hosts, dice):
    with start("worker frozen for 2 s") as run:
        run.wait_for_step(strike_step(dice))
        pid = run.worker_on(hosts[1])
        hosts[1].run("kill", f"-{signal.SIGSTOP.value}", pid)
        time.sleep(2)  # the fault itself
        hosts[1].run("kill", f"-{signal.SIGCONT.value}", pid)
        run.finish()
        run.trial.seconds = run.seconds_without_step()


def test_a_host_that_runs_a_tenth_of_the_time(start, hosts, dice):
    """As when others take its processor: all its processes, Ray's too, are stopped for nine tenths of each second."""
    with start("a host ten times slower, for 10 s") as run:
        run.wait_for_step(strike_step(dice))
        for _ in range(10):
            hosts[2].signal_all(signal.SIGSTOP)
            time.sleep(0.9)  # the fault itself
            hosts[2].signal_all(signal.SIGCONT)
            time.sleep(0.1)
        run.finish()
        run.trial.seconds = run.seconds_without_step()


def test_a_link_that_is_slow(start, hosts, dice):
    with hosts[2].limited_to("256kbit"), start("a link of 256 kbit/s") as run:
        run.finish()


def test_a_link_with_a_long_delay(start, hosts, dice):
    with hosts[2].delayed_by(0.2):
        took_s = float(hosts[0].run(sys.executable, "-c", TIME_ROUND_TRIP, hosts[2].address))
        assert took_s >= 0.4
        with start("a link that delays each packet by 0.2 s") as run:
            run.finish()
