"""Lost workers, agents and nodes, new nodes and draining nodes: what is reported, and what continues."""

import contextlib
import dataclasses
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections import Counter

import cloudpickle
import oracle
import pytest
import ray
import torch
from msgspec.structs import replace

from paceline import train
from paceline._engine.base import WorkerGroupSpec, WorkerSpec
from paceline._engine.messages import (
    Joined,
    Release,
    Reported,
    SampleStacks,
    WorkerFailed,
    WorkerInit,
    WorkerReady,
    WorkersStopped,
)
from paceline._engine.ray import agent_event_loop, node_agent
from paceline._engine.ray.engine import RayEngine
from paceline._engine.ray.placement import PlacementSpec
from paceline._worker.context import current
from paceline.train import BackendConfig, Checkpoint, Result, RunConfig, ScalingConfig
from paceline.train.torch import TorchTrainer
from processes import wait_until

pytestmark = pytest.mark.slow

PATIENCE_S = 100.0


class Recorder:
    """An engine, and all that it has said."""

    def __init__(self, **options):
        self.engine = RayEngine(PlacementSpec({"CPU": 1}), **options)
        self.messages = []

    def until(self, enough):
        deadline = time.monotonic() + PATIENCE_S
        while not enough():
            assert time.monotonic() < deadline, f"timed out, received {self.messages}"
            self.messages += self.engine.wait(1.0)

    def count(self, kind):
        return sum(isinstance(each, kind) for each in self.messages)

    def begin(self, group):
        self.messages.clear()
        self.engine.start(group)

    def start(self, group):
        self.begin(group)
        self.until(lambda: self.count(WorkerReady) == len(group.workers))
        return self.slots

    @property
    def slots(self):
        return list(self.engine._event_loop._attempt.slots)

    @property
    def failures(self):
        return {each.rank: each.failure for each in self.messages if isinstance(each, WorkerFailed)}

    def stop(self):
        self.engine.stop(kill=True)
        self.until(lambda: self.count(WorkersStopped))
        # Nothing comes after it, and it comes once.
        self.engine.stop(kill=True)
        self.messages += self.engine.wait(0.3)
        assert isinstance(self.messages[-1], WorkersStopped)
        assert self.count(WorkersStopped) == 1


@pytest.fixture
def make_engine():
    with contextlib.ExitStack() as engines:

        def make(**options):
            recorder = Recorder(**options)
            engines.callback(recorder.engine.close)
            return recorder

        yield make


@pytest.fixture
def group(tmp_path):
    job = cloudpickle.dumps((signal.pause, None, BackendConfig()))

    def group(attempt, size=2):
        begin = WorkerInit("run", str(tmp_path), attempt, 0, size, 0, size, 0, first_seq=0, num_threads=1)
        workers = [WorkerSpec(replace(begin, rank=rank), tmp_path / f"{rank}.log") for rank in range(size)]
        return WorkerGroupSpec(attempt, tuple(workers), job)

    return group


def test_lost_workers_agents_and_nodes_are_distinguished_and_only_they_are_replaced(make_engine, group, cluster):
    engine = make_engine()
    slots = engine.start(group(1, 4))
    agents = [slot.placement.pid for slot in slots]
    assert sorted(Counter(slot.placement.node_id for slot in slots).values()) == [2, 2]
    assert agents[0] == agents[1] != agents[2] == agents[3], "one agent on each node"

    # A worker: as on one machine.
    os.kill(engine.engine.pid(1), signal.SIGKILL)
    engine.until(lambda: engine.failures)
    assert (engine.failures[1].kind, engine.failures[1].message) == ("killed", "killed by SIGKILL")
    engine.stop()
    assert list(engine.failures) == [1]
    assert [slot.placement.pid for slot in engine.start(group(2, 4))] == agents

    # Agents, each with the workers of its node: one that is killed, then one that Ray is asked to end.
    os.kill(agents[0], signal.SIGKILL)
    engine.until(lambda: len(engine.failures) == 2)
    assert sorted(engine.failures) == [0, 1]
    for failure in engine.failures.values():
        assert failure.kind == "killed"
        assert failure.message == (
            f"the agent of its node {slots[0].placement.address} ({slots[0].placement.node_id}), "
            f"process {agents[0]}, was killed"
        )
    engine.stop()
    slots = engine.start(group(3, 4))
    assert [slot.placement.pid == agent for slot, agent in zip(slots, agents, strict=True)] == [False] * 2 + [True] * 2
    ray.kill(slots[3].agent.actor)
    engine.until(lambda: len(engine.failures) == 2)
    assert sorted(engine.failures) == [2, 3]
    assert engine.failures[3].message.endswith("was killed with ray.kill")
    engine.stop()
    after = engine.start(group(4, 4))

    # A node, with two of them; another one comes.
    agents = {slot.placement.pid for slot in after}
    home = ray.get_runtime_context().get_node_id()
    node = next(slot.placement.node_id for slot in after if slot.placement.node_id != home)
    lost = [slot.rank for slot in after if slot.placement.node_id == node]
    cluster.remove(node)
    engine.until(lambda: len(engine.failures) == 2)
    assert sorted(engine.failures) == lost
    for failure in engine.failures.values():
        assert failure.kind == "killed"
        assert failure.message.startswith(f"its node {slots[0].placement.address} ({node}) was lost: ")
    engine.stop()
    assert sorted(engine.failures) == lost
    engine.engine.start(group(5, 4))
    assert engine.engine.waits
    new = cluster.add()
    engine.messages.clear()
    engine.until(lambda: engine.count(WorkerReady) == 4)
    assert len({slot.placement.pid for slot in engine.slots} & agents) == 1, "the one on the other node stays"
    assert Counter(slot.placement.node_id for slot in engine.slots)[new] == 2
    engine.stop()
    assert not engine.failures


def test_an_end_while_workers_are_being_placed_is_an_end(make_engine, group):
    engine = make_engine()
    for attempt in range(1, 4):
        engine.begin(group(attempt))
        if attempt == 2:
            engine.until(lambda: engine.engine.wait(0.2) or engine.engine._event_loop.agent_pool._agents)
        engine.stop()
        assert not engine.failures
    # There is no room for so many, ever.
    engine.begin(group(4, 40))
    assert engine.engine.wait(0.5) == []
    assert engine.engine.waits
    engine.stop()
    assert not engine.engine.waits
    # After all that it works.
    engine.start(group(5))
    engine.stop()


def test_plain_reports_wait_for_others_and_what_is_urgent_takes_them_along(make_engine, group, monkeypatch):
    def function():
        for number in range(3):
            train.report({"number": number})
        train.collective.barrier()
        for number in range(2000):
            train.report({"number": number})
        signal.pause()

    monkeypatch.setattr(agent_event_loop, "_MAX_HOLD_S", 1e4)
    monkeypatch.setattr(agent_event_loop, "_HOLD_PER_AGENT_S", 1e4)
    engine = make_engine()
    event_loop = engine.engine._event_loop
    handle_output, sizes = event_loop._handle_output, []

    def count_and_handle(agent, data):
        sizes.append(len(node_agent.decode_output(data).messages))
        handle_output(agent, data)

    monkeypatch.setattr(event_loop, "_handle_output", count_and_handle)
    engine.begin(dataclasses.replace(group(1), job=cloudpickle.dumps((function, None, BackendConfig()))))
    engine.until(lambda: engine.count(Joined) == 2)
    assert engine.count(Reported) == 6, "they are not overtaken"
    for rank in (0, 1):
        engine.engine.send(rank, Release(1))
    num_samples = 0

    def sample_until_all_are_there():
        nonlocal num_samples
        num_samples += 1
        engine.engine.send(num_samples % 2, SampleStacks(num_samples))
        return engine.count(Reported) == 4006

    engine.until(sample_until_all_are_there)
    for rank in (0, 1):
        seqs = [each.seq for each in engine.messages if isinstance(each, Reported) and each.rank == rank]
        assert seqs == [*range(1, 2004)]
    # Ready, both pids and joined: what is sent besides has an answer in it.
    assert len(sizes) <= num_samples + 8, sizes
    engine.stop()


def test_agents_that_are_lost_as_they_come_up_are_a_failure(make_engine, group):
    engine = make_engine()
    engine.begin(group(1))
    agent_pool = engine.engine._event_loop.agent_pool
    engine.until(lambda: agent_pool._agents)
    for agent in list(agent_pool._agents.values()):
        ray.kill(agent.actor)
    engine.until(lambda: engine.count(WorkersStopped))
    # Agents that were quicker than their end have workers, and are told of as that.
    messages = {failure.kind: failure.message for failure in engine.failures.values()}
    assert messages
    assert set(messages) <= {"engine", "killed"}
    if "engine" in messages:
        assert messages["engine"].startswith("cannot start the workers: ActorDiedError: ")
    engine.stop()
    engine.start(group(2))
    engine.stop()


def test_an_exception_on_a_thread_of_the_engine_is_reported(make_engine, group, monkeypatch, tmp_path):
    engine = make_engine()
    event_loop = engine.engine._event_loop
    # In a callback, in a task, in what is heard.
    for attempt, broken in enumerate(("send", "_launch", "_handle_output"), 1):
        with monkeypatch.context() as patch:
            if broken != "send":
                patch.setattr(event_loop, broken, lambda *_: 1 / 0)
                engine.begin(group(attempt))
            else:
                engine.start(group(attempt))
                patch.setattr(event_loop, broken, lambda *_: 1 / 0)
                engine.engine.send(0, None)
            engine.until(lambda: engine.failures)
            failure = next(iter(engine.failures.values()))
            assert failure.kind == "engine"
            assert "ZeroDivisionError: division by zero" in failure.message
            engine.stop()
    # In an agent: a log that cannot be.
    (tmp_path / "file").touch()
    fourth = group(4)
    lost = WorkerSpec(fourth.workers[1].begin, tmp_path / "file" / "1.log")
    engine.begin(dataclasses.replace(fourth, workers=(fourth.workers[0], lost)))
    engine.until(lambda: 1 in engine.failures)
    assert engine.failures[1].kind == "engine"
    assert "FileExistsError: " in engine.failures[1].message
    engine.stop()
    assert sorted(engine.failures) == [0, 1], "all workers of its node"
    engine.start(group(5))
    engine.stop()


def test_a_group_that_there_is_no_room_for_any_more_fails_where_fewer_will_do(make_engine, group):
    engine = make_engine(least=1)
    engine.begin(group(1, 40))
    engine.until(lambda: engine.count(WorkersStopped))
    (failure,) = engine.failures.values()
    message = "workers not started: only 4 of 40 workers fit"
    assert (failure.kind, failure.message) == ("engine", message)
    engine.start(group(2, 2))
    engine.stop()


def test_workers_leave_a_node_that_is_drained_with_not_a_step_lost(cluster, fit, tmp_path, capsys):
    def function():
        context, last = train.get_context(), train.get_checkpoint()
        rank = context.get_world_rank()
        for step in range(last.to_dict()["step"] + 1 if last else 1, 13):
            if (info := train.get_preemption_info()) is not None:
                (tmp_path / f"told_{rank}").write_text(json.dumps([step, info.preempted_node_to_ranks]))
            if step == 6:
                (tmp_path / f"stands_{rank}").touch()
                while current()._stop is None:  # until the notice has come
                    time.sleep(0.02)
            metrics = {"step": step, "beside": context.get_local_world_size()}
            train.report(metrics, checkpoint_on_stop=lambda step=step: Checkpoint.from_dict({"step": step}))

    home = ray.get_runtime_context().get_node_id()
    node = next(each for each in cluster.added if each != home)

    def drain():
        wait_until(lambda: all((tmp_path / f"stands_{rank}").exists() for rank in (0, 1)))
        reason = ("--reason", "DRAIN_NODE_REASON_PREEMPTION", "--reason-message", "spot")
        which = ("--node-id", node, "--deadline-remaining-seconds", "60")
        command = [sys.executable, "-m", "ray.scripts.scripts", "drain-node", "--address", cluster.address]
        subprocess.run([*command, *reason, *which], check=True, capture_output=True)

    # SPREAD is a wish: while the processes of another test still count on one node, both workers would go to the other.
    wait_until(lambda: ray.available_resources().get("CPU") == ray.cluster_resources()["CPU"])
    draining = threading.Thread(target=drain, daemon=True)
    draining.start()
    result = fit(function, 2, strategy="SPREAD")
    draining.join()
    cluster.remove(node)
    assert [json.loads((tmp_path / f"told_{rank}").read_text()) for rank in (0, 1)] == [[7, {node: [1]}]] * 2
    assert result.checkpoint.to_dict() == {"step": 7}
    assert "the machine of rank 1 is about to be preempted" in capsys.readouterr().err
    rows = result.metrics_dataframe
    assert rows["step"].tolist() == list(range(1, 13))
    assert rows["beside"].tolist() == [1] * 7 + [2] * 5, "then both on the other node"


SCRIPT = """
import itertools, os, signal, sys, time
import ray
from paceline import train
from paceline.train import Checkpoint, DataParallelTrainer, RunConfig

ray.init(address=sys.argv[1], log_to_driver=False)
before = signal.getsignal(signal.SIGTERM)

def function(config):
    for i in itertools.count():
        if i == 20:
            os.kill(config["driver"], signal.SIGTERM)
        time.sleep(0.01)
        train.report({"i": i}, checkpoint_on_stop=lambda i=i: Checkpoint.from_dict({"i": i}))

trainer = DataParallelTrainer(
    function, train_loop_config={"driver": os.getpid()}, run_config=RunConfig(name="run", storage_path="runs")
)
try:
    trainer.fit()
finally:
    assert signal.getsignal(signal.SIGTERM) is before
"""


def test_a_driver_that_ray_is_initialised_in_hears_that_its_machine_goes(run_script, cluster, tmp_path):
    ended = run_script(SCRIPT, cluster.address)
    assert ended.returncode == 75, ended.stderr
    assert "was preempted after" in ended.stderr
    result = Result.from_path(tmp_path / "runs" / "run")
    assert result.checkpoint.to_dict() == {"i": result.metrics["i"]}


STEPS = 80


def test_a_run_shrinks_when_a_node_is_lost_and_grows_when_one_comes(cluster, tmp_path, capsys, undisturbed):
    def before_step(step, size):
        if size == 4 and step == 10 and train.get_context().get_node_rank() == 1 and not (tmp_path / "lost").exists():
            # Its peers wait for it, and will see a broken connection before anybody knows of the node.
            (tmp_path / "loses").touch()
            signal.pause()
        if size == 2 and step == 20:
            (tmp_path / "grows").touch()
        if size == 2 and step > 20:
            time.sleep(1.0)

    def fit(engine, num_workers, before_step):
        return TorchTrainer(
            oracle.batched,
            train_loop_config={"steps": STEPS, "before_step": before_step},
            scaling_config=ScalingConfig(num_workers, global_batch_size=8, elastic_resize_monitor_interval_s=0),
            run_config=RunConfig(name=engine, storage_path=tmp_path, engine=engine),
        ).fit()

    def change_nodes():
        wait_until((tmp_path / "loses").exists)
        (tmp_path / "lost").touch()
        home = ray.get_runtime_context().get_node_id()
        cluster.remove(next(node for node in cluster.added if node != home))
        wait_until((tmp_path / "grows").exists)
        cluster.add()

    expected = fit("local", 1, lambda step, size: None).checkpoint.to_dict()["model"]
    changing = threading.Thread(target=change_nodes, daemon=True)
    changing.start()
    result = fit("ray", (2, 4), before_step)
    changing.join()
    rows = result.metrics_dataframe
    assert rows["step"].tolist() == list(range(1, STEPS + 1))
    sizes = rows["size"].tolist()
    assert (sizes[0], sizes[10], sizes[20], sizes[-1]) == (4, 2, 2, 4)
    parameters = result.checkpoint.to_dict()["model"]
    assert all(torch.allclose(parameters[name], expected[name], atol=1e-9, rtol=0) for name in expected)
    printed = capsys.readouterr().err
    assert "was lost: " in printed
    assert "with 2 workers where there were 4" in printed
    assert "with 4 workers where there were 2" in printed
