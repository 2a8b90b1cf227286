"""Workers, actors and nodes that are lost, nodes that come, nodes that are drained: what is told, what goes on."""

import os
import signal
import time
from collections import Counter

import cloudpickle
import pytest
import ray
from msgspec.structs import replace

from paceline._engine.base import Group, WorkerSpec
from paceline._engine.messages import Begin, WorkerFailed, WorkerReady, WorkersStopped
from paceline._engine.ray.engine import RayEngine
from paceline._engine.ray.placement import Wanted
from paceline.train import BackendConfig

PATIENCE_S = 60.0


class Heard:
    """An engine, and all that was heard of it."""

    def __init__(self, **options):
        self.engine = RayEngine(Wanted({"CPU": 1}), **options)
        self.said = []

    def until(self, enough):
        deadline = time.monotonic() + PATIENCE_S
        while not enough(self.said):
            assert time.monotonic() < deadline, f"waited in vain, heard {self.said}"
            self.said += self.engine.wait(1.0)

    def started(self, group):
        self.said.clear()
        self.engine.start(group)
        self.until(lambda said: count(said, WorkerReady) == len(group.workers))
        return self.seats

    @property
    def seats(self):
        return list(self.engine._conversation._now.seats)

    @property
    def failures(self):
        return {each.rank: each.failure for each in self.said if isinstance(each, WorkerFailed)}

    def stopped(self):
        self.engine.stop(kill=True)
        self.until(lambda said: count(said, WorkersStopped))
        # Nothing comes after it, and it comes once.
        self.engine.stop(kill=True)
        self.said += self.engine.wait(0.3)
        assert isinstance(self.said[-1], WorkersStopped)
        assert count(self.said, WorkersStopped) == 1


def count(said, kind):
    return sum(isinstance(each, kind) for each in said)


@pytest.fixture
def heard():
    engines = []

    def make(**options):
        engines.append(Heard(**options))
        return engines[-1]

    yield make
    for each in engines:
        each.engine.close()


@pytest.fixture
def group(tmp_path):
    job = cloudpickle.dumps((signal.pause, None, BackendConfig()))

    def group(attempt, size=2):
        begin = Begin("run", str(tmp_path), attempt, 0, size, 0, size, 0, first_seq=0, num_threads=1)
        workers = [WorkerSpec(replace(begin, rank=rank), tmp_path / f"{rank}.log") for rank in range(size)]
        return Group(attempt, tuple(workers), job)

    return group


def test_what_is_lost_is_told_apart_and_only_that_is_replaced(heard, group, cluster):
    engine = heard()
    seats = engine.started(group(1, 4))
    shells = [seat.where.pid for seat in seats]
    assert sorted(Counter(seat.where.node_id for seat in seats).values()) == [2, 2]

    # A worker: as on one machine.
    os.kill(engine.engine.pid(1), signal.SIGKILL)
    engine.until(lambda said: engine.failures)
    assert (engine.failures[1].kind, engine.failures[1].message) == ("killed", "killed by SIGKILL")
    engine.stopped()
    assert list(engine.failures) == [1]
    assert [seat.where.pid for seat in engine.started(group(2, 4))] == shells

    # Actors: one that is killed, one that Ray is asked to end.
    os.kill(shells[0], signal.SIGKILL)
    ray.kill(seats[3].actor)
    engine.until(lambda said: len(engine.failures) == 2)
    assert {failure.kind for failure in engine.failures.values()} == {"killed"}
    assert f"process {shells[0]} on node {seats[0].where.address}" in engine.failures[0].message
    assert engine.failures[3].message.endswith("was killed with ray.kill")
    engine.stopped()
    after = engine.started(group(3, 4))
    assert len({seat.where.pid for seat in after} & set(shells)) == 2, "two are still those that were there"

    # A node, with two of them; another one comes.
    shells = {seat.where.pid for seat in after}
    node = next(seat.where.node_id for seat in after if seat.where.node_id != ray.get_runtime_context().get_node_id())
    lost = [seat.rank for seat in after if seat.where.node_id == node]
    cluster.remove(node)
    engine.until(lambda said: len(engine.failures) == 2)
    assert sorted(engine.failures) == lost
    for failure in engine.failures.values():
        assert failure.kind == "killed"
        assert failure.message.startswith(f"its node {seats[0].where.address} ({node}) was lost: ")
    engine.stopped()
    assert sorted(engine.failures) == lost
    engine.engine.start(group(4, 4))
    assert engine.engine.waits
    new = cluster.add()
    engine.said.clear()
    engine.until(lambda said: count(said, WorkerReady) == 4)
    assert len({seat.where.pid for seat in engine.seats} & shells) == 2, "those on the other node stay"
    assert Counter(seat.where.node_id for seat in engine.seats)[new] == 2
    engine.stopped()
    assert not engine.failures


def test_an_end_while_workers_are_being_placed_is_an_end(heard, group):
    engine = heard()
    for attempt in range(1, 4):
        engine.said.clear()
        engine.engine.start(group(attempt))
        if attempt == 2:
            engine.until(lambda said: engine.engine.wait(0.2) or engine.engine._conversation.crew._seats)
        engine.stopped()
        assert not engine.failures
    # There is no room for so many, ever.
    engine.said.clear()
    engine.engine.start(group(4, 40))
    assert engine.engine.wait(0.5) == []
    assert engine.engine.waits
    engine.stopped()
    assert not engine.engine.waits
    # After all that it works.
    engine.started(group(5))
    engine.stopped()


def test_actors_that_are_lost_before_they_answer_are_a_failure_of_the_engine(heard, group):
    engine = heard()
    engine.engine.start(group(1))
    crew = engine.engine._conversation.crew
    engine.until(lambda said: len(crew._seats) == 2)
    for seat in list(crew._seats.values()):
        ray.kill(seat.actor)
    engine.until(lambda said: count(said, WorkersStopped))
    (failure,) = engine.failures.values()
    assert failure.kind == "engine"
    assert failure.message.startswith("the workers could not be started: ActorDiedError: ")
    engine.stopped()
    engine.started(group(2))
    engine.stopped()


def test_whatever_goes_wrong_on_the_thread_of_the_engine_is_told(heard, group, monkeypatch):
    engine = heard()
    conversation = engine.engine._conversation
    # In a callback, in a task, in what is heard.
    for attempt, broken in enumerate(("_send", "_launch", "_hear"), 1):
        engine.said.clear()
        with monkeypatch.context() as patch:
            if broken != "_send":
                patch.setattr(conversation, broken, lambda *_: 1 / 0)
                engine.engine.start(group(attempt))
            else:
                engine.started(group(attempt))
                patch.setattr(conversation, broken, lambda *_: 1 / 0)
                engine.engine.send(0, None)
            engine.until(lambda said: engine.failures)
            failure = next(iter(engine.failures.values()))
            assert failure.kind == "engine"
            assert "ZeroDivisionError: division by zero" in failure.message
            engine.stopped()
    engine.started(group(4))
    engine.stopped()


def test_a_group_that_there_is_no_room_for_any_more_fails_where_fewer_will_do(heard, group):
    engine = heard(least=1)
    engine.engine.start(group(1, 40))
    engine.until(lambda said: count(said, WorkersStopped))
    (failure,) = engine.failures.values()
    assert (failure.kind, failure.message) == (
        "engine",
        "the workers were not started: there is room for 4 of 40 workers",
    )
    engine.started(group(2, 2))
    engine.stopped()
