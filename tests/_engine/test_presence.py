"""Whether a cluster is there, by what answers at its address; no cluster is needed for that."""

import contextlib
import socket
import threading
import time

import pytest

from paceline._engine.messages import WorkerFailed, WorkerFailure, WorkersStopped
from paceline._engine.ray.cluster_monitor import ClusterLostError, ClusterMonitor, MonitoredEngine

FAILED = WorkerFailed(1, 0, WorkerFailure(0, "killed", "its node was lost"))


@pytest.fixture
def head():
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server


@pytest.fixture
def presence(head):
    host, port = head.getsockname()
    with contextlib.closing(ClusterMonitor(f"{host}:{port}", 600)) as presence:
        yield presence


class ScriptedEngine:
    """An engine that says what it is given to say."""

    def __init__(self, *said):
        self.said = list(said)
        self.closed = False

    def wait(self, timeout_s):
        said, self.said = self.said, []
        return said

    def capacity(self, needs, least, most):
        threading.Event().wait()

    def close(self):
        self.closed = True


def wait_until(condition):
    deadline = time.monotonic() + 60
    while not (answer := condition()):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    return answer


def test_a_head_that_takes_connections_is_there_and_a_lost_worker_is_told_at_once(presence):
    assert presence.check_reachable()
    presence.raise_if_lost()
    assert presence.call_cluster(lambda: 7) == 7
    with pytest.raises(KeyError):
        presence.call_cluster(lambda: {}[1])
    assert MonitoredEngine(ScriptedEngine(FAILED), presence).wait(0) == [FAILED]


def test_one_that_does_not_for_a_while_is_lost_and_nothing_waits_for_it(head, presence):
    engine = MonitoredEngine(ScriptedEngine(), presence)
    presence._patience_s = 0.3
    head.close()
    with pytest.raises(ClusterLostError, match=r"127\.0\.0\.1:\d+ is gone: its head has not answered for 0\.3 s"):
        engine.capacity(None, 1, 1)
    with pytest.raises(ClusterLostError):
        engine.wait(0)
    engine.close()
    assert not engine._engine.closed, "its own end would wait for the head"


def test_a_lost_worker_is_held_back_until_the_head_is_back_or_lost(head, presence):
    inner = ScriptedEngine(FAILED)
    engine = MonitoredEngine(inner, presence)
    address = head.getsockname()
    head.close()
    assert engine.wait(0) == []
    inner.said = [WorkersStopped(1)]
    assert engine.wait(0) == []
    with socket.create_server(address):
        assert wait_until(lambda: engine.wait(0)) == [FAILED, WorkersStopped(1)]
    inner.said = [FAILED]
    assert engine.wait(0) == []
    presence._patience_s = 0.3
    wait_until(lambda: presence.is_lost)
    with pytest.raises(ClusterLostError):
        engine.wait(0)
