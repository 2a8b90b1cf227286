"""Detecting the loss of a cluster by its head's address, without a cluster."""

import contextlib
import socket
import threading

import pytest

from paceline._engine.messages import WorkerFailed, WorkerFailure, WorkersStopped
from paceline._engine.ray import cluster_monitor
from paceline._engine.ray.cluster_monitor import ClusterLostError, ClusterMonitor, MonitoredEngine
from processes import wait_until

FAILED = WorkerFailed(1, 0, WorkerFailure(0, "killed", "its node was lost"))


@pytest.fixture
def head():
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server


@pytest.fixture
def monitor(head):
    host, port = head.getsockname()
    with contextlib.closing(ClusterMonitor(f"{host}:{port}", 600)) as monitor:
        yield monitor


class ScriptedEngine:
    """An engine that returns prepared messages."""

    def __init__(self, *messages):
        self.messages = list(messages)
        self.closed = False

    def wait(self, timeout_s):
        messages, self.messages = self.messages, []
        return messages

    def capacity(self, needs, least, most):
        threading.Event().wait()

    def close(self):
        self.closed = True


def test_reports_a_lost_worker_at_once_while_the_head_answers(monitor):
    assert monitor.check_reachable()
    monitor.raise_if_lost()
    assert monitor.call_cluster(lambda: 7) == 7
    with pytest.raises(KeyError):
        monitor.call_cluster(lambda: {}[1])
    assert MonitoredEngine(ScriptedEngine(FAILED), monitor).wait(0) == [FAILED]


def test_a_silent_head_is_lost_and_nothing_waits_for_it(head, monitor):
    engine = MonitoredEngine(ScriptedEngine(), monitor)
    monitor._patience_s = 0.3
    head.close()
    with pytest.raises(ClusterLostError, match=r"127\.0\.0\.1:\d+ is lost: its head has not answered for 0\.3 s"):
        engine.capacity(None, 1, 1)
    with pytest.raises(ClusterLostError):
        engine.wait(0)
    engine.close()
    assert not engine._engine.closed, "its own end would wait for the head"


def test_withholds_a_lost_worker_until_the_head_is_back_or_lost(head, monitor):
    inner = ScriptedEngine(FAILED)
    engine = MonitoredEngine(inner, monitor)
    address = head.getsockname()
    head.close()
    assert engine.wait(0) == []
    inner.messages = [WorkersStopped(1)]
    assert engine.wait(0) == []
    with socket.create_server(address):
        assert wait_until(lambda: engine.wait(0)) == [FAILED, WorkersStopped(1)]
    inner.messages = [FAILED]
    assert engine.wait(0) == []
    monitor._patience_s = 0.3
    wait_until(lambda: monitor.is_lost)
    with pytest.raises(ClusterLostError):
        engine.wait(0)


def test_says_that_the_head_does_not_answer_and_when_it_answers_again(head, monkeypatch):
    monkeypatch.setattr(cluster_monitor, "NOTICE_AFTER_S", 0.0)
    said = []
    host, port = head.getsockname()
    with contextlib.closing(ClusterMonitor(f"{host}:{port}", 600, said.append)):
        head.close()
        wait_until(lambda: said)
        with socket.create_server((host, port)):
            wait_until(lambda: len(said) > 1)
    begin, end = said
    assert begin.startswith(f"no answer from the head of the Ray cluster at {host}:{port} for ")
    assert begin.endswith("the run fails after 600 s (PACELINE_CLUSTER_PATIENCE_S)")
    assert end.startswith(f"the head of the Ray cluster at {host}:{port} answers again, after ")
