"""Properties of a run that could differ on a cluster, in few runs with much in each."""

import json
import math
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import cloudpickle
import numpy as np
import oracle
import psutil
import pytest

from paceline import train
from paceline._control.events import WorkerFailed
from paceline._control.retry_policy import first_failure
from paceline._engine.ray import storage_probe
from paceline.testing import Faults
from paceline.train import Checkpoint, CheckpointConsistencyMode, Result, ValidationConfig, WorkerGroupError
from written_runs import read_events

cloudpickle.register_pickle_by_value(sys.modules[__name__])  # Workers cannot import this file.


def test_workers_know_their_places_speak_with_each_other_and_return_what_they_like(fit, capsys):
    factor = 3

    class Thing:
        def __init__(self, value):
            self.value = factor * value

    def function():
        context = train.get_context()
        rank = context.get_world_rank()
        print("hello from", rank)
        os.write(1, b"written past Python\n")
        shared = train.collective.broadcast_from_rank_zero({"from": rank, "array": np.arange(3)})
        train.collective.barrier()
        me = psutil.Process()
        connections = [*me.net_connections(kind="inet"), *me.parent().net_connections(kind="inet")]
        listening = [each.laddr for each in connections if each.status == psutil.CONN_LISTEN]
        facts = {
            "rank": rank,
            "size": context.get_world_size(),
            "local": (context.get_local_rank(), context.get_local_world_size()),
            "node": context.get_node_rank(),
            "name": context.get_experiment_name(),
            "given": (shared["from"], int(shared["array"].sum())),
            "leads": os.getpid() == os.getsid(0) == os.getpgid(0),
            "main": threading.current_thread() is threading.main_thread(),
            "listening": listening,
            "pid": os.getpid(),
        }
        (Path(context.get_storage().experiment_fs_path) / f"facts-{rank}").write_text(json.dumps(facts))
        metrics = {"a": math.nan, "b": -math.inf, "c": np.float32(0.5), "d": {"e": [1, None]}}
        train.report(metrics, checkpoint=Checkpoint.from_dict({"factor": factor, "array": np.arange(5)}))
        return Thing(rank + 1)

    result = fit(function, 5, resources={"CPU": 0.5})
    facts = [json.loads((Path(result.path) / f"facts-{rank}").read_text()) for rank in range(5)]
    for rank, each in enumerate(facts):
        assert (each["rank"], each["size"], each["name"]) == (rank, 5, "run")
        assert each["given"] == [0, 3]
        assert each["leads"]
        assert each["main"]
        assert each["listening"] == [], "nothing of ours"
    nodes = [each["node"] for each in facts]
    assert nodes == sorted(nodes)
    assert set(nodes) == {0, 1}, "two CPUs on a node have room for four"
    for node in (0, 1):
        beside = [each["local"] for each in facts if each["node"] == node]
        assert beside == [[local, len(beside)] for local in range(len(beside))]
    assert len({each["pid"] for each in facts}) == 5

    assert math.isnan(result.metrics["a"])
    assert (result.metrics["b"], result.metrics["c"], result.metrics["d"]) == (-math.inf, 0.5, {"e": [1, None]})
    assert result.return_value.value == 3
    result.checkpoint.verify()
    assert result.checkpoint.to_dict()["array"].tolist() == list(range(5))
    printed = capsys.readouterr()
    assert "[rank 0] hello from 0\n" in printed.out
    assert "[rank 0] written past Python\n" in printed.out
    assert "hello from 1" not in printed.out
    for rank in range(5):
        assert f"hello from {rank}" in (result.log_dir / "attempt_1" / f"rank_{rank}.log").read_text()
    begins, *others, complete = printed.err.splitlines()
    assert all("requires no token" in line for line in others), "which the first run of a process may say"
    assert begins.startswith("paceline: run run begins: 5 workers on the Ray cluster at ")
    assert complete == "paceline: run run finished after 1 report"


def test_a_run_whose_rank_is_killed_resumes_and_ends_as_an_undisturbed_one(fit_with):
    path = fit_with(Faults().kill(1, ("step", 4)))
    assert oracle.causes(path) == [(1, "killed")]


class Unpicklable(Exception):
    def __reduce__(self):
        raise TypeError("no pickle")


def throw(error):
    raise error


def end_with_a_child(path):
    child = subprocess.Popen([sys.executable, "-c", "import signal; signal.pause()"])
    path.write_text(str(child.pid))
    os.kill(os.getpid(), signal.SIGKILL)


def kill_ancestor(number):
    """Of this worker: the zygote that it was forked from, what waits for that, the agent."""
    os.kill(psutil.Process().parents()[number].pid, signal.SIGKILL)
    signal.pause()


ENDS = (
    (lambda _: throw(Unpicklable("odd")), "user", "Unpicklable: odd"),
    (lambda _: throw(ValueError("y" * 20_000_000)), "user", "ValueError: yyyy"),
    (lambda _: throw(MemoryError("40 GB")), "memory", "MemoryError: 40 GB"),
    (lambda _: os._exit(3), "exited", "exited with code 3 before its function returned"),
    (end_with_a_child, "killed", "killed by SIGKILL"),
    (lambda _: kill_ancestor(0), "engine", "ended because the zygote it was forked from was killed"),
    (lambda _: kill_ancestor(2), "killed", "the agent of its node "),
    (lambda _: throw(ValueError("loss is nan")), "user", "ValueError: loss is nan"),
)
"""How rank 1 ends in one attempt after the other; the last is one too many. What the engine loses is not counted."""


@pytest.mark.slow
def test_however_a_worker_ends_the_reason_is_reported_and_its_children_end_with_it(fit, tmp_path, capsys, monkeypatch):
    probed, begin = [], storage_probe.StorageProbe.write_question
    monkeypatch.setattr(
        storage_probe.StorageProbe, "write_question", lambda probe: (probed.append(probe.question.name), begin(probe))
    )
    attempts, child = tmp_path / "attempts", tmp_path / "child"
    ends = ENDS
    num_counted = sum(kind != "engine" for _, kind, _ in ENDS)

    def function():
        if train.get_context().get_world_rank() == 1:
            with attempts.open("ab") as file:
                file.write(b"x")
            number = attempts.stat().st_size
            train.report({"i": number})
            print("my last words", number)
            ends[number - 1][0](child)
        train.report({"i": 0})
        train.collective.barrier()

    with pytest.raises(WorkerGroupError) as caught:
        fit(function, 2, strategy="STRICT_SPREAD", max_failures=num_counted - 1)

    error = caught.value
    failures = {}
    for event in read_events(error.result.path, WorkerFailed):
        failures.setdefault(event.attempt, []).append(event.failure)
    firsts = [first_failure(each) for each in failures.values()]
    assert [(each.rank, each.kind) for each in firsts] == [(1, kind) for _, kind, _ in ENDS]
    for failure, (_, _, message) in zip(firsts, ENDS, strict=True):
        assert failure.message.startswith(message)
        assert len(failure.message) < 3000
        assert failure.host
    assert isinstance(error.worker_failures[1], ValueError)
    text = str(error)
    assert text.startswith(f"1 of 2 workers failed on attempt {num_counted} of {num_counted} ")
    assert "ValueError: loss is nan" in text
    assert "test_runs.py:" in text
    assert "rank_1.log" in text
    assert f"[rank 1] my last words {len(ENDS)}\n" in capsys.readouterr().out
    assert not psutil.pid_exists(int(child.read_text()))
    assert len(probed) == 1, "whether nodes share the storage is looked at once in a run"
    assert not (tmp_path / "run" / ".probe").exists()


UNREAD = """
import os, signal
from paceline import train
from paceline.train import DataParallelTrainer, RunConfig

def function(driver):
    os.kill(driver["pid"], signal.SIGSTOP)
    for i in range(500):
        train.report({"i": i})
    os.kill(driver["pid"], signal.SIGKILL)
    signal.pause()

run_config = RunConfig(name="run", storage_path=".")
DataParallelTrainer(function, train_loop_config={"pid": os.getpid()}, run_config=run_config).fit()
"""


@pytest.mark.slow
def test_reports_that_no_driver_read_are_in_the_journal_after_all(tmp_path, cluster, run_script):
    ended = run_script(UNREAD, env={"RAY_ADDRESS": cluster.address})
    assert ended.returncode == -signal.SIGKILL, ended.stderr
    result = Result.from_path(tmp_path / "run")
    assert result.metrics_dataframe["i"].tolist() == list(range(500))
    assert result.metrics == {"i": 499}


@pytest.mark.slow
def test_a_validation_has_room_on_a_full_cluster_and_its_death_is_tried_again(fit, tmp_path):
    died = tmp_path / "died"

    def validate(checkpoint):
        if not died.exists():
            died.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return {"doubled": 2 * checkpoint.to_dict()["value"], "gpus": os.environ["CUDA_VISIBLE_DEVICES"]}

    def function():
        train.report({"value": 4}, checkpoint=Checkpoint.from_dict({"value": 4}), validation=True)
        checkpoints = train.get_all_reported_checkpoints(CheckpointConsistencyMode.VALIDATED)
        return [each.metrics for each in checkpoints]

    config = ValidationConfig(validate, ray_remote_kwargs={"max_retries": 1})
    result = fit(function, 4, more={"validation_config": config})
    assert result.return_value == [{"value": 4, "doubled": 8, "gpus": ""}]
    assert died.exists()
