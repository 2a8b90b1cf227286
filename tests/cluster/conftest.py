"""What the tests on a Ray cluster stand on: one cluster for all of them, and nothing of ours left on it after each.

Ray is initialised in this process for as long as these tests run, and by that alone runs are on it.
"""

import json
import os
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

HERE = Path(__file__).parent
NODE = {"num_cpus": 2, "object_store_memory": 150_000_000}
NUM_NODES = 2
GRACE_S = 10.0
CLUSTER = "PACELINE_TEST_CLUSTER"
"""What all processes of the cluster carry in their environment."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.ray)


class Nodes:
    """The cluster: `address`, and nodes that come and go."""

    def __init__(self, environ: dict[str, str]) -> None:
        self._process = subprocess.Popen(
            [sys.executable, str(HERE / "nodes.py")],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=environ,
            text=True,
        )
        self._process.wait()  # what serves is a fork of it
        self.address = ""
        self.name = environ[CLUSTER]
        self.added: list[str] = []

    def add(self, **node: Any) -> str:
        """Another node; its id."""
        answer = self._ask({"do": "add", "node": {**NODE, **node}})
        self.address = answer["address"]
        self.added.append(answer["node"])
        return answer["node"]

    def remove(self, node: str) -> None:
        """At once, as when its machine is lost."""
        self.added.remove(node)
        self._ask({"do": "remove", "node": node})

    def close(self) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.stdout.read()  # until it has ended
        self._process.stdout.close()

    def _ask(self, asked: dict[str, Any]) -> dict[str, Any]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        print(json.dumps(asked), file=self._process.stdin, flush=True)
        answer: dict[str, Any] = json.loads(self._process.stdout.readline())
        return answer


@pytest.fixture(scope="package")
def nodes() -> Iterator[Nodes]:
    environ = {name: value for name, value in os.environ.items() if name != "PACELINE_TEST_SESSION"}
    # Without these a node that is gone is noticed after half a minute, and idle processes linger.
    environ |= {
        CLUSTER: uuid.uuid4().hex,
        "RAY_health_check_initial_delay_ms": "0",
        "RAY_health_check_period_ms": "1000",
        "RAY_health_check_failure_threshold": "3",
        "RAY_DEDUP_LOGS": "0",
        "RAY_USAGE_STATS_ENABLED": "0",
    }
    nodes = Nodes(environ)
    nodes.add(include_dashboard=False)
    for _ in range(NUM_NODES - 1):
        nodes.add()
    yield nodes
    nodes.close()


@pytest.fixture(scope="package")
def connected(nodes: Nodes) -> Iterator[Nodes]:
    """The cluster, with Ray initialised in this process."""
    import ray

    ray.init(address=nodes.address, log_to_driver=False, logging_level="ERROR", configure_logging=False)
    yield nodes
    ray.shutdown()


@pytest.fixture(autouse=True)
def cluster(connected: Nodes, nothing_is_left_behind: None) -> Iterator[Nodes]:
    """The cluster; a test that leaves an actor, a placement group, a process or a node of ours there fails."""
    before = list(connected.added)
    yield connected
    problems = _left(connected.name)
    deadline = time.monotonic() + GRACE_S
    while problems and time.monotonic() < deadline:
        time.sleep(0.05)
        problems = _left(connected.name)
    for node in set(connected.added) - set(before):
        connected.remove(node)
    while len(connected.added) < NUM_NODES:
        connected.add()
    if problems:
        pytest.fail("the test left something on the cluster:\n  " + "\n  ".join(problems), pytrace=False)


def _left(name: str) -> list[str]:
    import ray
    from ray.util.placement_group import placement_group_table

    if not ray.is_initialized():
        return ["Ray is not initialised any more"]
    groups = [name for name, each in placement_group_table().items() if each["state"] != "REMOVED"]
    return [f"placement group {name}" for name in groups] + [f"process {told}" for told in _processes(name)]


def _processes(name: str) -> list[str]:
    """Actors of ours, zygotes and workers on the nodes of the cluster."""
    found = []
    for process in psutil.process_iter():
        try:
            told = " ".join(process.cmdline())
            if process.pid == os.getpid() or process.environ().get(CLUSTER) != name:
                continue
        except psutil.Error:
            continue
        if "ray::Shell" in told or "ray::RowService" in told or "paceline" in told:
            found.append(f"{process.pid}: {told[:200]}")
    return found
