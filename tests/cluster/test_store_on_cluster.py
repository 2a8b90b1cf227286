"""Where runs on a cluster are kept: a store, with a spool of its own on each node, or a directory that all share.

Storage that the nodes do not share, or cannot reach, is found before any worker starts.
"""

import contextlib
import os
import signal
import uuid

import msgspec
import psutil
import pytest
import ray
from left_over import MARK

from paceline import train
from paceline._core.codec import unseal_line
from paceline._storage.address import open_store_at
from paceline.train import Checkpoint, Result, StorageError, TrainingFailedError
from processes import wait_until
from servers import BUCKET, s3_variables

pytestmark = pytest.mark.slow


@pytest.fixture
def path(s3_environment, tmp_path, monkeypatch):
    monkeypatch.setenv("PACELINE_SPOOL_PATH", str(tmp_path / "driver"))
    return f"s3://{BUCKET}/{uuid.uuid4().hex[:8]}"


@pytest.fixture
def variables(s3_server, tmp_path):
    """Of the nodes: the store's, and a spool that is not the driver's."""
    return {**s3_variables(s3_server.authority), "PACELINE_SPOOL_PATH": str(tmp_path / "nodes")}


def test_logs_reports_and_checkpoints_of_all_ranks_are_in_the_store(path, variables, tmp_path, fit, capfd):
    def loop():
        rank = train.get_context().get_world_rank()
        checkpoint = train.get_checkpoint()
        start = checkpoint.to_dict()["step"] + 1 if checkpoint is not None else 0
        print(f"rank {rank} starts at {start}", flush=True)
        for step in range(start, 4):
            train.report({"step": step, "rank": rank}, checkpoint=Checkpoint.from_dict({"step": step}))
            if step == 1 and not start and rank == 1:
                for number in range(20_000):
                    print(f"line {number} of many lines that rank 1 prints before its end")
                raise ValueError("planned")
        print(f"rank {rank} ends")

    environment = {"env_vars": variables}
    result = fit(loop, 2, strategy="STRICT_SPREAD", storage_path=path, worker_runtime_env=environment, max_failures=1)
    assert result.metrics["step"] == 3
    assert result.checkpoint.to_dict() == {"step": 3}
    store = open_store_at(f"{path}/run")
    logs = {entry.key: store.read(entry.key).decode() for entry in store.list_entries("logs")}
    assert sorted(logs) == [f"logs/attempt_{attempt}/rank_{rank}.log" for attempt in (1, 2) for rank in (0, 1)]
    assert logs["logs/attempt_1/rank_0.log"].startswith("rank 0 starts at 0\n")
    failed = logs["logs/attempt_1/rank_1.log"].splitlines()
    assert failed[0] == "rank 1 starts at 0"
    assert failed[1:20_001] == [f"line {n} of many lines that rank 1 prints before its end" for n in range(20_000)]
    assert failed[-1] == "ValueError: planned"
    assert logs["logs/attempt_2/rank_1.log"] == "rank 1 starts at 2\nrank 1 ends\n"
    shown = capfd.readouterr().out
    for line in ("[rank 0] rank 0 starts at 0", "[rank 1] ValueError: planned", "[rank 0] rank 0 ends"):
        assert shown.count(f"{line}\n") == 1
    # Of every rank, every report, once in each attempt that made it.
    frame = Result.from_path(f"{path}/run").metrics_dataframe
    assert list(frame["step"]) == [0, 1, 2, 3]
    assert [entry.key for entry in store.list_entries(".probe")] == []
    # What the nodes had goes with the agents.
    wait_until(lambda: not [path for path in (tmp_path / "nodes").rglob("*") if path.is_file()])


def _find_agents(cluster):
    """The agents of runs, on this cluster and no other."""
    agents = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if process.name().startswith("ray::NodeAgent") and process.environ().get(MARK) == cluster:
                agents.append(process)
    return agents


def test_reports_that_a_lost_agent_did_not_tell_are_in_the_journal_of_a_shared_directory(tmp_path, fit):
    def loop():
        if train.get_checkpoint() is not None or (tmp_path / "again").exists():
            return
        (tmp_path / "again").touch()
        (agent,) = _find_agents(os.environ[MARK])
        for number in range(500):
            train.report({"number": number})
        agent.kill()
        signal.pause()

    fit(loop, max_failures=1)
    lines = (tmp_path / "run" / "journal.jsonl").read_bytes().splitlines(keepends=True)
    events = [msgspec.json.decode(unseal_line(line)) for line in lines]
    assert [event["seq"] for event in events if event["type"] == "reported"] == [*range(1, 501)]
    assert [event["type"] for event in events].count("worker_failed") == 1


def test_a_directory_that_a_node_does_not_share_is_found_with_the_node(hidden, tmp_path, fit):
    path = hidden / "runs"
    with pytest.raises(TrainingFailedError) as raised:
        fit(lambda: (tmp_path / "ran").touch(), 3, strategy="STRICT_SPREAD", storage_path=path, max_failures=3)
    text = str(raised.value)
    (blind,) = (node for node in ray.nodes() if node["Alive"] and "blind" in node["Resources"])
    assert f"node {blind['NodeManagerAddress']} ({blind['NodeID']})" in text
    assert not any(node["NodeID"] in text for node in ray.nodes() if node != blind)
    assert str(path / "run") in text
    assert "hint: set RunConfig(storage_path=...) to a directory that the driver and all nodes share" in text
    assert not (tmp_path / "ran").exists()
    assert not (path / "run" / ".probe").exists()


def test_a_store_that_nodes_cannot_reach_is_found_with_the_node(path, tmp_path, fit):
    environment = {"env_vars": s3_variables("127.0.0.1:9")}
    with pytest.raises(TrainingFailedError) as raised:
        fit(lambda: (tmp_path / "ran").touch(), storage_path=path, worker_runtime_env=environment)
    text = str(raised.value)
    assert f"not all nodes can reach {path}/run, where the run is stored: node " in text
    assert any(node["NodeID"] in text for node in ray.nodes())
    assert "worker_runtime_env={'env_vars': {...}}" in text
    assert isinstance(raised.value.__cause__, StorageError)
    assert not (tmp_path / "ran").exists()
