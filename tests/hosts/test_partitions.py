"""Hosts that are cut off from some of the others: the driver says so in time, and what it gives up commits nothing.

The driver is not on the host of the head.
"""

import pytest

from processes import wait_until

pytestmark = pytest.mark.seeds(20, few=0)

DRIVER = 1
BOUND_S = 60.0


def has_ended(host, pid):
    return not host.is_alive or not host.run("sh", "-c", f"kill -0 {pid} 2>/dev/null && echo alive || true").strip()


def record_delay(run, *texts):
    run.trial.seconds, run.trial.told_s = run.seconds_without_step(), run.seconds_to_say(*texts)
    assert run.trial.told_s < BOUND_S, run.said


def test_a_link_between_driver_and_worker_that_comes_back(start, network, hosts, dice):
    with start("driver and a worker's host cut off from each other for 10 s or more", DRIVER) as run:
        run.wait_for_step(dice.randint(6, 24))
        worker = run.worker_on(hosts[2])
        with network.cutting(hosts[DRIVER], hosts[2]):
            run.wait_until_said("no answer from host3 (10.87.0.3) for ")
            assert not has_ended(hosts[2], worker)
        said = run.finish()
        record_delay(run, "no answer from host3")
        assert "host3 (10.87.0.3) answers again, after " in said
        assert "1 of 3 workers failed" not in said
        assert {step for rank, step, _ in run.steps()} == set(range(1, 61))
        assert len(run.steps()) == 3 * 60, "no step was made twice"


def test_a_link_between_driver_and_worker_that_stays_down(start, network, hosts, dice):
    """The head sees both: Ray notices nothing, and would place the new worker on the same host."""
    variables = {"PACELINE_NODE_PATIENCE_S": "12"}
    with start("driver and a worker's host cut off from each other for good", DRIVER, env=variables) as run:
        run.wait_for_step(dice.randint(6, 24))
        old = run.worker_on(hosts[2])
        with network.cutting(hosts[DRIVER], hosts[2]):
            run.wait_until_said("cannot be reached: the driver has had no answer from host3 (10.87.0.3) for ")
            wait_until(lambda: has_ended(hosts[2], old))
            run.finish()
        record_delay(run, "no answer from host3")
