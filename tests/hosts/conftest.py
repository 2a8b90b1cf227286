"""One cluster of three hosts for all tests here; a host that a test takes away comes back after it."""

import contextlib
import random
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import servers

HERE = Path(__file__).parent
sys.path += [str(HERE), str(HERE.parent / "contracts")]

from host_runs import HostRun  # noqa: E402
from network import Host, Network, missing_tools  # noqa: E402

NUM_HOSTS = 3


def pytest_collection_modifyitems(items):
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.chaos)
            item.add_marker(pytest.mark.ray)
            item.add_marker(pytest.mark.timeout(1200))


@pytest.fixture(scope="session")
def network(tmp_path_factory):
    pytest.importorskip("ray")
    if missing := missing_tools():
        pytest.skip(f"no hosts can be made here without {missing}: faults of a network were not tried")
    network = Network(tmp_path_factory.mktemp("network"), NUM_HOSTS)
    try:
        network.start_ray()
        yield network
    finally:
        network.close()


@pytest.fixture
def hosts(network):
    yield network.hosts
    network.restore()


@pytest.fixture
def dice(request, seed):
    """Chooses the moment of the fault."""
    return random.Random(f"{request.node.originalname} {seed}")


@pytest.fixture
def start(network, request, fault_table):
    """Start a run, and record what its block does to it as a fault that was survived if the block ends well."""

    @contextlib.contextmanager
    def start(fault, driver=0, **options):
        name = request.node.name.replace("[", "-").replace("]", "").replace(" ", "-")
        with fault_table.trying(f"three hosts: {fault}") as trial:
            run = HostRun(network, name, network.hosts[driver], **options)
            run.trial = trial
            with contextlib.closing(run):
                yield run

    return start


@dataclass(frozen=True)
class StoreHost:
    host: Host
    run: dict[str, Any]
    """Options of a run that is kept there."""


@pytest.fixture(scope="session")
def store(network):
    """A host with a server of S3, which no Ray node is on."""
    host = network.add_plain_host()
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL, "text": True}
    server = host.popen(sys.executable, "-W", "ignore", Path(servers.__file__), "s3", host.address, **pipes)
    authority = f"{host.address}:{server.stdout.readline().strip()}"
    put = "import sys, urllib.request as r; r.urlopen(r.Request(sys.argv[1], method='PUT')).close()"
    host.run(sys.executable, "-c", put, f"http://{authority}/{servers.BUCKET}")
    variables = servers.s3_variables(authority)
    # The region spares pyarrow to ask for it.
    address = f"s3://{servers.BUCKET}/runs?region=us-east-1&endpoint_override={authority}&scheme=http"
    return StoreHost(host, {"storage": address, "env": variables, "env_vars": variables})
