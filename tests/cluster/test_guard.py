"""The guard of these tests: whatever a run leaves on the cluster is noticed by name, or no test here would say much."""

import contextlib
import signal
import subprocess
import sys

import cloudpickle
import psutil
import pytest
from left_over import left, nothing_is_left
from ray.util.placement_group import placement_group_table

from paceline import train
from paceline._engine.base import Group, WorkerSpec
from paceline._engine.messages import Begin, Reported, WorkerFailed
from paceline._engine.ray.engine import RayEngine
from paceline._engine.ray.placement import Wanted
from paceline.train import BackendConfig

CHILD = "import signal; print(flush=True); signal.pause()"


@pytest.fixture
def running(tmp_path):
    """A worker on the cluster that has started a process and waits for ever: its pid, and what ends it when closed."""

    def stays():
        child = subprocess.Popen([sys.executable, "-c", CHILD], stdout=subprocess.PIPE)
        child.stdout.readline()
        train.report({})
        signal.pause()

    begin = Begin("run", str(tmp_path), 1, 0, 1, 0, 1, 0, first_seq=0, num_threads=1)
    job = cloudpickle.dumps((stays, None, BackendConfig()))
    engine = RayEngine(Wanted({"CPU": 1}))
    engine.start(Group(1, (WorkerSpec(begin, tmp_path / "log"),), job))
    heard = []
    while not any(isinstance(message, Reported) for message in heard):
        assert not any(isinstance(message, WorkerFailed) for message in heard), heard
        heard += engine.wait(10)
    with contextlib.ExitStack() as stack:
        stack.callback(engine.close)
        yield engine.pid(0), stack


def test_an_actor_a_zygote_a_worker_its_children_and_a_placement_group_are_noticed(running, cluster):
    pid, engine = running
    worker = psutil.Process(pid)
    zygote = worker.parent()
    (child,) = worker.children()
    (group,) = (name for name, each in placement_group_table().items() if each["state"] != "REMOVED")
    planted = {
        "actor": f"process {zygote.parent().ppid()}: ray::Shell",
        "zygote": f"process {zygote.pid}: ",
        "what waits for it": f"process {zygote.ppid()}: ",
        "worker": f"process {worker.pid}: ",
        "its child": f"process {child.pid}: {sys.executable} -c {CHILD}",
        "placement group": f"placement group {group}",
    }
    noticed = left(cluster.name)
    for what, told in planted.items():
        assert any(problem.startswith(told) for problem in noticed), f"{what}: {noticed}"
    assert len(noticed) == len(planted)
    with pytest.raises(pytest.fail.Exception, match="left something on the cluster") as caught:
        nothing_is_left(cluster.name, grace_s=0.0)
    assert all(told in str(caught.value) for told in planted.values())

    engine.close()
    nothing_is_left(cluster.name, grace_s=5.0)
