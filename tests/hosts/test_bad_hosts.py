"""A host that cannot take part is named before any worker of the run starts, and no other is."""

import contextlib
import hashlib
from pathlib import Path

import pytest
from network import SHARED

import paceline

pytestmark = pytest.mark.seeds(20, few=0)

PLANTED = {
    "a host without the package": (
        "raise ModuleNotFoundError(\"No module named 'paceline'\", name='paceline')",
        "Paceline is not installed on node {address} ",
        f"hint: install paceline=={paceline.__version__} there",
    ),
    "a host with another version of the package": (
        "__version__ = '0.0.1'",
        "node {address} has Paceline 0.0.1 ",
        f"hint: install the same version on all machines: pip install 'paceline=={paceline.__version__}'",
    ),
}


def plant(network, name, source):
    """Return the variables with which Python finds this module before any other of the name."""
    place = Path("planted", hashlib.sha256(source.encode()).hexdigest()[:8])
    path = network.shared / place / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(source)
    return {"PYTHONPATH": str(SHARED / place)}


@contextlib.contextmanager
def node_with(network, variables):
    """A node on the third host whose processes have these variables, and afterwards none."""
    network.hosts[2].stop_ray()
    network.wait_for_nodes(2)
    network.hosts[2].start_ray(env=variables)
    network.wait_for_nodes(3)
    yield
    network.hosts[2].stop_ray()
    network.wait_for_nodes(2)


def assert_refused(run, host, *parts):
    assert run.wait() == 1, run.said
    for part in parts:
        assert part.format(address=host.address) in run.said, run.said
    assert "node 10.87.0.1" not in run.said, run.said
    assert "node 10.87.0.2" not in run.said, run.said
    assert [*run.notes.iterdir()] == [], "no worker has started"
    run.trial.told_s = run.seconds_to_say(parts[0].format(address=host.address))


@pytest.mark.parametrize("fault", PLANTED)
def test_a_host_with_other_software(start, network, hosts, seed, fault):
    source, *parts = PLANTED[fault]
    with node_with(network, plant(network, "paceline/__init__.py", source)), start(fault) as run:
        assert_refused(run, hosts[2], *parts)


def test_a_host_that_does_not_have_the_shared_directory(start, network, hosts, seed):
    hosts[2].run("umount", SHARED)
    try:
        with start("a host without the shared directory") as run:
            assert_refused(
                run, hosts[2], "not the same directory on all nodes: node {address} ", "hint: set RunConfig("
            )
    finally:
        network.replace(2)


def test_a_host_that_does_not_reach_the_store(start, hosts, seed, store):
    with hosts[2].dropping("-s", store.host.address), start("a host that does not reach the store", **store.run) as run:
        parts = ("not all nodes can reach s3://bucket/runs/", "where the run is stored: node {address} ", "env_vars")
        assert_refused(run, hosts[2], *parts)


@pytest.mark.parametrize("hours", [1, -1])
def test_a_host_whose_clock_is_an_hour_off_is_named_and_the_run_does_not_mind(start, network, hosts, seed, hours):
    """Of its Python processes: Ray's own do not bear a preloaded library that changes the time."""
    source = f"import time\nreal = time.time\ntime.time = lambda: real() + {hours * 3600}"
    variables = plant(network, "sitecustomize.py", source)
    how = "ahead of" if hours > 0 else "behind"
    with node_with(network, variables), start("clock of a host an hour off") as run:
        said = run.finish()
        assert f"the clock of node {hosts[2].address} " in said, said
        assert f"is 3,600 s {how} this machine's" in said, said
        run.trial.told_s = run.seconds_to_say("the clock of node")
