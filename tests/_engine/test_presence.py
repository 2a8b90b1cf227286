"""Whether a cluster is there, by what answers at its address; no cluster is needed for that."""

import contextlib
import socket
import threading
import time

import pytest

from paceline._engine.messages import Failure, WorkerFailed, WorkersStopped
from paceline._engine.ray.presence import Anchored, ClusterLostError, Presence


@pytest.fixture
def head():
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server


@pytest.fixture
def presence(head):
    host, port = head.getsockname()
    with contextlib.closing(Presence(f"{host}:{port}", 0.3)) as presence:
        yield presence


def lost(presence):
    deadline = time.monotonic() + 10
    while not presence.lost:
        assert time.monotonic() < deadline
        time.sleep(0.01)


class Heard:
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


FAILED = WorkerFailed(1, 0, Failure(0, "killed", "its node was lost"))


def test_a_head_that_takes_connections_is_there(presence):
    assert presence.answers()
    presence.raise_if_lost()
    assert presence.asked(lambda: 7) == 7
    with pytest.raises(KeyError):
        presence.asked(lambda: {}[1])


def test_one_that_does_not_for_a_while_is_lost_and_nothing_waits_for_it(head, presence):
    engine = Anchored(Heard(), presence)
    head.close()
    with pytest.raises(ClusterLostError, match=r"127\.0\.0\.1:\d+ is gone: its head has not answered for 0\.3 s"):
        engine.capacity(None, 1, 1)
    with pytest.raises(ClusterLostError):
        engine.wait(0)
    engine.close()
    assert not engine._engine.closed, "its own end would wait for the head"


def test_a_lost_worker_is_told_at_once_while_the_head_answers(presence):
    assert Anchored(Heard(FAILED), presence).wait(0) == [FAILED]


def test_a_lost_worker_is_not_told_where_the_cluster_is_lost(head, presence):
    engine = Anchored(Heard(FAILED), presence)
    head.close()
    assert engine.wait(0) == []
    lost(presence)
    with pytest.raises(ClusterLostError):
        engine.wait(0)


def test_a_head_that_comes_back_gives_free_what_was_held_back(head):
    host, port = head.getsockname()
    with contextlib.closing(Presence(f"{host}:{port}", 60)) as presence:
        inner = Heard(FAILED)
        engine = Anchored(inner, presence)
        head.close()
        assert engine.wait(0) == []
        inner.said = [WorkersStopped(1)]
        assert engine.wait(0) == []
        with socket.create_server((host, port)):
            deadline = time.monotonic() + 10
            while not (said := engine.wait(0)):
                assert time.monotonic() < deadline
                time.sleep(0.01)
        assert said == [FAILED, WorkersStopped(1)]
