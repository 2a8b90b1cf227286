"""What a test has left on the cluster: actors of ours, zygotes, workers, whatever those started, placement groups.

Ray's own processes are known by where their programs lie, or by the names that Ray gives them; all else that carries
the mark of the cluster came of a run.
"""

import os
import time

import psutil
import pytest

from processes import find_processes

MARK = "PACELINE_TEST_CLUSTER"
"""What all processes of the cluster carry in their environment."""
OUR_ACTORS = ("ray::NodeAgent", "ray::DetachedActor", "ray::RowService", "ray::RowFiles")
RAYS_OWN = ("bin/ray start", "/site-packages/ray/", "ray::", "tests/cluster/nodes.py")


def assert_nothing_is_left(name: str, grace_s: float = 60.0) -> None:
    """Fail, naming it, if anything of ours is still there after so long."""
    deadline = time.monotonic() + grace_s
    while (problems := list_left(name)) and time.monotonic() < deadline:
        time.sleep(0.05)
    if problems:
        pytest.fail("the test left something on the cluster:\n  " + "\n  ".join(problems), pytrace=False)


def list_left(name: str) -> list[str]:
    """What is there of ours now, on the cluster with this name."""
    import ray
    from ray.util.placement_group import placement_group_table

    if not ray.is_initialized():
        return ["Ray is not initialised any more"]
    groups = [name for name, each in placement_group_table().items() if each["state"] != "REMOVED"]
    processes = find_processes(lambda process: is_of(process, name) and _is_ours(" ".join(process.cmdline())))
    return [f"placement group {name}" for name in groups] + [f"process {process}" for process in processes]


def is_of(process: psutil.Process, name: str) -> bool:
    """Whether a process belongs to the cluster with this name."""
    return process.pid != os.getpid() and process.environ().get(MARK) == name


def _is_ours(command: str) -> bool:
    if command.startswith(OUR_ACTORS) or "paceline._engine" in command:
        return True
    return bool(command) and not any(part in command for part in RAYS_OWN)
