"""A host that Ray has declared dead and that comes back: what is left there ends by itself, and changes nothing."""

import pytest

from processes import wait_until

pytestmark = pytest.mark.seeds(20, few=0)

BOUND_S = 60.0
LIMIT_S = 400
INIT = {"sh", "cat"}
"""What holds the namespaces of a host."""


def cut_off_until_dead(run, network, host):
    worker = run.worker_on(host)
    host.set_link("down")
    network.wait_for_nodes(2)
    run.trial.told_s = run.seconds_to_say(host.address)
    assert run.trial.told_s < BOUND_S, run.said
    assert worker in {pid for pid, _ in host.list_processes()}, "nothing has told it yet"


def wait_until_empty(host):
    wait_until(lambda: {name for _, name in host.list_processes()} <= INIT, LIMIT_S)


@pytest.mark.parametrize("kind", ["a shared disk", "a store"])
def test_a_host_that_ray_gave_up_comes_back(start, network, hosts, dice, store, kind):
    """The run continues on the other two meanwhile."""
    options = store.run if kind == "a store" else {}
    with start(f"host given up by Ray, connected again, run on {kind}", **options, pace_s=0.3) as run:
        run.wait_for_step(dice.randint(6, 24))
        cut_off_until_dead(run, network, hosts[2])
        hosts[2].set_link("up")
        wait_until_empty(hosts[2])
        run.finish()
        run.trial.seconds = run.seconds_without_step()
        assert [*run.path.glob(".staging/*")] == [], "nothing is left of a checkpoint that was not committed"


def test_a_host_that_ray_gave_up_is_used_again(start, network, hosts, dice):
    """The run needs all hosts, and waits for a new node on this one."""
    with start("host given up by Ray, connected again, needed by the run", num_workers=6) as run:
        run.wait_for_step(dice.randint(6, 24))
        cut_off_until_dead(run, network, hosts[2])
        run.wait_until_said("waiting for capacity")
        hosts[2].set_link("up")
        wait_until_empty(hosts[2])
        hosts[2].start_ray()
        run.finish()
        run.trial.seconds = run.seconds_without_step()
