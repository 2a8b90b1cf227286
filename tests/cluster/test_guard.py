"""The guard of these tests: whatever a run leaves on the cluster is noticed by name, or no test here would say much."""

import signal
import subprocess
import sys

import cloudpickle
import psutil
import pytest
from left_over import left, nothing_is_left

from paceline import train
from paceline._engine.base import Group, WorkerSpec
from paceline._engine.messages import Begin, Reported, WorkerFailed
from paceline._engine.ray.engine import RayEngine
from paceline._engine.ray.placement import Wanted
from paceline.train import BackendConfig

CHILD = "import signal; print(flush=True); signal.pause()"


@pytest.fixture
def running(tmp_path):
    """An engine with one worker on the cluster that has started a process and waits for ever."""

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
    yield engine
    if engine._thread.is_alive():
        engine.close()


def test_an_actor_a_zygote_a_worker_its_children_and_a_placement_group_are_noticed(running, cluster):
    (seat,) = running._crew.seats
    worker = psutil.Process(running.pid(0))
    (child,) = worker.children()
    planted = {
        "actor": f"process {seat.where.pid}: ray::Shell",
        "zygote": f"process {worker.ppid()}: ",
        "what waits for it": f"process {worker.parent().ppid()}: ",
        "worker": f"process {worker.pid}: ",
        "its child": f"process {child.pid}: {sys.executable} -c {CHILD}",
        "placement group": f"placement group {running._crew.group.id.hex()}",
    }
    assert seat.where.pid != worker.ppid() != worker.pid
    noticed = left(cluster.name)
    for what, told in planted.items():
        assert any(problem.startswith(told) for problem in noticed), f"{what}: {noticed}"
    assert len(noticed) == len(planted)
    with pytest.raises(pytest.fail.Exception, match="left something on the cluster") as caught:
        nothing_is_left(cluster.name, grace_s=0.0)
    assert all(told in str(caught.value) for told in planted.values())

    running.close()
    nothing_is_left(cluster.name, grace_s=5.0)
