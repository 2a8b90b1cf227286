"""Workers, actors and nodes that are lost, nodes that come, nodes that are drained: what is told, what goes on."""

import dataclasses
import os
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from pathlib import Path

import cloudpickle
import psutil
import pytest
import ray
import torch
from msgspec.structs import replace
from torch.utils.data import DataLoader, TensorDataset

from paceline import train
from paceline._engine.base import Group, WorkerSpec
from paceline._engine.messages import Begin, WorkerFailed, WorkerReady, WorkersStopped
from paceline._engine.ray.engine import RayEngine
from paceline._engine.ray.placement import Wanted
from paceline.train import (
    BackendConfig,
    Checkpoint,
    DataParallelTrainer,
    FailureConfig,
    Result,
    RunConfig,
    ScalingConfig,
)
from paceline.train.torch import TorchTrainer, prepare_data_loader, prepare_model

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


def test_actors_that_are_lost_as_they_come_up_are_a_failure(heard, group):
    engine = heard()
    engine.engine.start(group(1))
    crew = engine.engine._conversation.crew
    engine.until(lambda said: len(crew._seats) == 2)
    for seat in list(crew._seats.values()):
        ray.kill(seat.actor)
    engine.until(lambda said: count(said, WorkersStopped))
    # Actors that were quicker than their end have a worker each, and are told of as that.
    told = {failure.kind: failure.message for failure in engine.failures.values()}
    assert told
    assert set(told) <= {"engine", "killed"}
    if "engine" in told:
        assert told["engine"].startswith("the workers could not be started: ActorDiedError: ")
    engine.stopped()
    engine.started(group(2))
    engine.stopped()


def test_whatever_goes_wrong_on_a_thread_of_the_engine_is_told(heard, group, monkeypatch, tmp_path):
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
    # In an actor: a log that cannot be.
    (tmp_path / "file").touch()
    fourth = group(4)
    engine.said.clear()
    lost = WorkerSpec(fourth.workers[1].begin, tmp_path / "file" / "1.log")
    engine.engine.start(dataclasses.replace(fourth, workers=(fourth.workers[0], lost)))
    engine.until(lambda said: engine.failures)
    assert engine.failures[1].kind == "engine"
    assert "NotADirectoryError: " in engine.failures[1].message
    engine.stopped()
    assert list(engine.failures) == [1]
    engine.started(group(5))
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


def add_up(config):
    """What it comes to tells whether every step was made once, in order, each from the one before."""
    context = train.get_context()
    rank, last = context.get_world_rank(), train.get_checkpoint()
    state = last.to_dict() if last else {"step": -1, "total": 0}
    for step in range(state["step"] + 1, config["steps"]):
        state = {"step": step, "total": (state["total"] * 31 + step) % 1_000_003}
        config["disturb"](step, rank, config)
        told = train.get_preemption_info()
        if told is not None:
            Path(config["path"], f"told_{rank}").write_text(f"{step} {told.preempted_node_to_ranks}")
        made = Checkpoint.from_dict(state) if rank == 0 and (config["every"] or told) else None
        train.report({**state, "beside": context.get_local_world_size()}, checkpoint=made)
    return state["total"]


def total_after(steps):
    total = 0
    for step in range(steps):
        total = (total * 31 + step) % 1_000_003
    return total


def once(config, name):
    """True for the first who asks."""
    try:
        Path(config["path"], name).touch(exist_ok=False)
    except FileExistsError:
        return False
    return True


@pytest.fixture
def fit(tmp_path):
    def fit(disturb, steps, num_workers=2, *, every=True, max_failures=0, strategy="PACK"):
        config = {"steps": steps, "every": every, "disturb": disturb, "path": str(tmp_path)}
        result = DataParallelTrainer(
            add_up,
            train_loop_config=config,
            scaling_config=ScalingConfig(num_workers, placement_strategy=strategy),
            run_config=RunConfig(
                name="run", storage_path=tmp_path, failure_config=FailureConfig(max_failures=max_failures)
            ),
        ).fit()
        assert result.return_value == total_after(steps)
        rows = result.metrics_dataframe
        assert rows["step"].tolist() == list(range(steps)), "contiguous, each counted once"
        return rows

    return fit


def test_a_run_outlives_its_workers_and_the_actors_around_them(fit, capsys):
    def disturb(step, rank, config):
        if step == 3 and rank == 1 and once(config, "worker"):
            os.kill(os.getpid(), signal.SIGKILL)
        if step == 6 and rank == 0 and once(config, "actor"):
            shell = next(each for each in psutil.Process().parents() if each.name().startswith("ray::Shell"))
            shell.kill()
            signal.pause()

    fit(disturb, 9, max_failures=2)
    said = capsys.readouterr().err
    assert "killed by SIGKILL" in said
    assert "the actor around it, process " in said


def test_workers_leave_a_node_that_is_drained_with_not_a_step_lost(fit, cluster, tmp_path, capsys):
    def disturb(step, rank, config):
        if train.get_checkpoint() is None:
            if step == 5 and rank == 1:
                Path(config["path"], "goes").touch()
            time.sleep(0.1)  # until the notice has come

    home = ray.get_runtime_context().get_node_id()
    node = next(each for each in cluster.added if each != home)

    def drain():
        while not (tmp_path / "goes").exists():
            time.sleep(0.02)
        reason = ("--reason", "DRAIN_NODE_REASON_PREEMPTION", "--reason-message", "spot")
        which = ("--node-id", node, "--deadline-remaining-seconds", "60")
        command = [sys.executable, "-m", "ray.scripts.scripts", "drain-node", "--address", cluster.address]
        subprocess.run([*command, *reason, *which], check=True, capture_output=True)

    # SPREAD is a wish: while the processes of another test still count on one node, both workers would go to the other.
    while ray.available_resources().get("CPU") != ray.cluster_resources()["CPU"]:
        time.sleep(0.1)
    draining = threading.Thread(target=drain, daemon=True)
    draining.start()
    rows = fit(disturb, 600, every=False, strategy="SPREAD")
    draining.join()
    cluster.remove(node)
    told = (tmp_path / "told_1").read_text()
    assert (tmp_path / "told_0").read_text() == told
    last = int(told.split()[0])
    assert told == f"{last} {{'{node}': [1]}}"
    assert Result.from_path(tmp_path / "run").checkpoint.to_dict()["step"] == last
    assert "the machine of rank 1 is about to be taken away" in capsys.readouterr().err
    assert rows["beside"].tolist() == [1] * (last + 1) + [2] * (600 - last - 1), "then both on the other node"


SCRIPT = """
import os, signal, sys, time
import ray
from paceline import train
from paceline.train import Checkpoint, DataParallelTrainer, RunConfig

ray.init(address=sys.argv[1], log_to_driver=False)
before = signal.getsignal(signal.SIGTERM)

def function(config):
    for i in range(400):
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
    assert result.metrics["i"] < 399


def train_in_step(config):
    torch.manual_seed(0)
    torch.set_default_dtype(torch.float64)
    data = TensorDataset(torch.randn(52, 5), torch.randn(52, 1))
    loader = prepare_data_loader(DataLoader(data, shuffle=True))
    model = prepare_model(torch.nn.Sequential(torch.nn.Linear(5, 16), torch.nn.Tanh(), torch.nn.Linear(16, 1)))
    inner = getattr(model, "module", model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    step, last = 0, train.get_checkpoint()
    if last:
        state = last.to_dict()
        inner.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        loader.load_state_dict(state["loader"])
        step = state["step"]
    context = train.get_context()
    rank, size, node = context.get_world_rank(), context.get_world_size(), context.get_node_rank()
    while step < STEPS:
        for x, y in loader:
            if size == 4 and step == 10 and node == 1 and not Path(config["path"], "lost").exists():
                # Its peers wait for it, and will see a broken connection before anybody knows of the node.
                Path(config["path"], "loses").touch()
                signal.pause()
            if size == 2 and step == 20:
                Path(config["path"], "grows").touch()
            if size == 2 and step > 20 and config["path"]:
                time.sleep(0.2)
            loss = torch.nn.functional.mse_loss(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            step += 1
            state = {"model": inner.state_dict(), "optimizer": optimizer.state_dict(), "loader": loader.state_dict()}
            made = Checkpoint.from_dict({**state, "step": step}) if rank == 0 else None
            train.report({"step": step, "size": size}, checkpoint=made)
            if step == STEPS:
                break


STEPS = 80


def test_a_run_shrinks_when_a_node_is_lost_and_grows_when_one_comes(cluster, tmp_path, capsys):
    def fit(engine, num_workers, path):
        return TorchTrainer(
            train_in_step,
            train_loop_config={"path": path},
            scaling_config=ScalingConfig(num_workers, global_batch_size=8, elastic_resize_monitor_interval_s=0),
            run_config=RunConfig(name=engine, storage_path=tmp_path, engine=engine),
        ).fit()

    def nodes_come_and_go():
        while not (tmp_path / "loses").exists():
            time.sleep(0.05)
        (tmp_path / "lost").touch()
        home = ray.get_runtime_context().get_node_id()
        cluster.remove(next(node for node in cluster.added if node != home))
        while not (tmp_path / "grows").exists():
            time.sleep(0.05)
        cluster.add()

    expected = fit("local", 1, "").checkpoint.to_dict()["model"]
    changing = threading.Thread(target=nodes_come_and_go, daemon=True)
    changing.start()
    result = fit("ray", (2, 4), str(tmp_path))
    changing.join()
    rows = result.metrics_dataframe
    assert rows["step"].tolist() == list(range(1, STEPS + 1))
    sizes = rows["size"].tolist()
    assert (sizes[0], sizes[10], sizes[20], sizes[-1]) == (4, 2, 2, 4)
    found = result.checkpoint.to_dict()["model"]
    assert all(torch.allclose(found[name], expected[name], atol=1e-9, rtol=0) for name in expected)
    said = capsys.readouterr().err
    assert "was lost: " in said
    assert "with 2 workers where there were 4" in said
    assert "with 4 workers where there were 2" in said
