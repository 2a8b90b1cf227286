"""A host that loses the store, and nothing else, in the middle of a run: the driver names it in time.

What was committed stays. The run continues when the store is back, or ends with an error when patience is over.
"""

import signal

import pytest

pytestmark = pytest.mark.seeds(20, few=0)

BOUND_S = 60.0
HOSTS = {"a worker's host": 2, "the driver's host": 0}
NOTICES = {
    "a worker's host": ("still storing: rank 1 on host3", "still storing: rank 2 on host3", "on host3 cannot store"),
    # The driver itself may be what waits.
    "the driver's host": ("still storing: rank 0 on host1", "on host1 cannot store", "for storage at", "cannot commit"),
}


def record_delay(run, *texts):
    run.trial.told_s = run.seconds_to_say(*texts)
    assert run.trial.told_s < BOUND_S, run.said


@pytest.mark.parametrize("whose", HOSTS)
def test_a_host_that_loses_the_store_for_a_while(start, hosts, dice, store, whose):
    with start(f"{whose} cut off from the store until that is noticed", **store.run) as run:
        run.wait_for_step(dice.randint(6, 24))
        with hosts[HOSTS[whose]].dropping("-s", store.host.address):
            run.wait_until_said(*NOTICES[whose])
        said = run.finish()
        run.trial.seconds = run.seconds_without_step()
        record_delay(run, *NOTICES[whose])
        assert "workers failed" not in said, said
        assert len(run.steps()) == 3 * 60, "no step was made twice"


@pytest.mark.parametrize("whose", HOSTS)
def test_a_host_that_loses_the_store_for_good(start, hosts, dice, store, whose):
    """The run ends when patience is over; started again, it continues."""
    patient = {**store.run["env"], "PACELINE_STORAGE_PATIENCE_S": "10"}
    options = {**store.run, "env": patient, "max_failures": 0}
    with start(f"{whose} cut off from the store for good, then back", **options) as run:
        run.wait_for_step(dice.randint(6, 24))
        with hosts[HOSTS[whose]].dropping("-s", store.host.address):
            assert run.wait() == 1, run.said
        record_delay(run, *NOTICES[whose])
        with run.start_again(hosts[1]) as again:
            said = again.finish()
        assert "continues, from checkpoint_" in said, said
        run.trial.seconds = run.seconds_without_step()


def test_a_worker_that_restarts_where_the_store_is_lost(start, hosts, dice, store):
    """It reads its checkpoint there, which takes until the store is back."""
    with start("worker killed on a host cut off from the store, until that is noticed", **store.run) as run:
        run.wait_for_step(dice.randint(6, 24))
        with hosts[2].dropping("-s", store.host.address):
            hosts[2].run("kill", f"-{signal.SIGKILL.value}", run.worker_on(hosts[2]))
            run.wait_until_said("on host3 has been stuck")
        run.finish()
        run.trial.seconds = run.seconds_without_step()
        record_delay(run, "on host3 has been stuck")
        assert "waiting for storage at" in run.said, run.said
