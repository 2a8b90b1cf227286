"""One cluster of three hosts for all tests here; a host that a test takes away comes back after it."""

import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
sys.path.append(str(HERE))

from network import Network, missing_tools  # noqa: E402

NUM_HOSTS = 3


def pytest_collection_modifyitems(items):
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.chaos)
            item.add_marker(pytest.mark.ray)
            item.add_marker(pytest.mark.timeout(400))


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
