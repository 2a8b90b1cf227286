"""A driver that is cut off while another takes its run over: when it comes back it changes nothing, and says why."""

import signal
import time

import pytest

pytestmark = pytest.mark.seeds(20, few=0)

OPTIONS = {"num_workers": 2, "pace_s": 0.1}
VARIABLES = {"PACELINE_LEASE_TTL_S": "3", "PACELINE_CLUSTER_PATIENCE_S": "50"}


@pytest.mark.parametrize("kind", ["a shared disk", "a store"])
def test_an_old_driver_that_comes_back_changes_nothing(start, hosts, dice, store, kind):
    options = {**OPTIONS, "env": VARIABLES}
    if kind == "a store":
        options |= {**store.run, "env": {**store.run["env"], **VARIABLES}}
    with start(f"driver's host cut off, its run on {kind} taken over, connected again", 2, **options) as old:
        old.wait_for_step(dice.randint(6, 24))
        hosts[2].set_link("down")
        if kind == "a shared disk":
            hosts[2].signal_all(signal.SIGSTOP)  # A bound directory cannot be cut off.
        with old.start_again(hosts[0]) as new:
            new.wait_until_said("continues, from checkpoint_")
            old.trial.seconds = time.time() - old.struck_at
            hosts[2].set_link("up")
            if kind == "a shared disk":
                hosts[2].signal_all(signal.SIGCONT)
            assert old.wait() == 1, old.said
            assert "was taken over by process" in old.said, old.said
            assert "on host1" in old.said, old.said
            new.finish()
