"""The head of a cluster that keeps its state in Redis is lost and started again: the run continues, or can be."""

import shutil
import signal
import subprocess

import pytest
from host_runs import HostRun
from network import Network

from processes import wait_until

pytestmark = pytest.mark.seeds(20, few=0)

LOST = "no answer from the head of the Ray cluster at 10.87.0.1:6379 for "
REDIS_PORT = 6380
PATIENT = {"PACELINE_CLUSTER_PATIENCE_S": "120"}
"""On a busy machine a head may need more than one start, each of them half a minute."""


@pytest.fixture(scope="module")
def lasting(tmp_path_factory):
    """A cluster of three hosts whose head keeps its state in a Redis on a fourth one; no workers are on the head."""
    if shutil.which("redis-server") is None:
        pytest.skip("redis-server is not installed: the loss of a head with its state in Redis was not tried")
    network = Network(tmp_path_factory.mktemp("lasting"), 3)
    try:
        server = network.add_plain_host()
        options = ["--port", REDIS_PORT, "--bind", server.address, "--protected-mode", "no", "--save", ""]
        quiet = {"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        server.popen("redis-server", *options, **quiet)
        ping = ("sh", "-c", f"redis-cli -h {server.address} -p {REDIS_PORT} ping || true")
        wait_until(lambda: "PONG" in server.run(*ping))
        network.head_variables = {"RAY_REDIS_ADDRESS": f"{server.address}:{REDIS_PORT}"}
        network.hosts[0].start_ray(num_cpus=0, env=network.head_variables)
        network.wait_for_nodes(1)
        for host in network.hosts[1:]:
            host.start_ray(num_cpus=4)
        network.wait_for_nodes(3)
        yield network
    finally:
        network.close()


def test_a_head_that_is_restarted_with_its_state_in_redis(lasting, request, dice, fault_table):
    """The driver and the workers are on other hosts. All of Ray on the head's host is killed, and started again."""
    head = lasting.hosts[0]
    with fault_table.trying("three hosts: head killed and started again, its state in Redis") as trial:
        name = f"head-{request.node.callspec.params['seed']}"
        run = HostRun(lasting, name, lasting.hosts[1], env=PATIENT, pace_s=1.5)
        try:
            run.wait_for_step(dice.randint(6, 24))
            head.signal_all(signal.SIGKILL)
            run.wait_until_said(LOST)
            head.start_ray(num_cpus=0, env=lasting.head_variables)
            run.wait_until_said("the head of the Ray cluster at 10.87.0.1:6379 answers again, after ")
            run.finish()
            trial.seconds, trial.told_s = run.seconds_without_step(), run.seconds_to_say(LOST)
            assert len(run.steps()) == 3 * 60, "no step was made twice"
        finally:
            run.close()
    lasting.wait_for_nodes(3)
