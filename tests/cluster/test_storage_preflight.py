"""Storage that the nodes do not share, or cannot reach, is found before any worker starts."""

import json
import os
import signal
import uuid
from pathlib import Path

import pytest
import ray

from paceline import train
from paceline._engine.ray import shared
from paceline.train import (
    DataParallelTrainer,
    FailureConfig,
    RunConfig,
    ScalingConfig,
    StorageError,
    TrainingFailedError,
)
from servers import BUCKET, Server, s3_variables


def test_a_directory_that_a_node_does_not_share_is_found_with_the_node(hidden: Path, tmp_path: Path) -> None:
    path = hidden / "runs"

    def never() -> None:
        (tmp_path / "ran").touch()

    trainer = DataParallelTrainer(
        never,
        scaling_config=ScalingConfig(3, placement_strategy="STRICT_SPREAD"),
        run_config=RunConfig(name="run", storage_path=path, failure_config=FailureConfig(max_failures=3)),
    )
    with pytest.raises(TrainingFailedError) as raised:
        trainer.fit()
    text = str(raised.value)
    (blind,) = (node for node in ray.nodes() if node["Alive"] and "blind" in node["Resources"])
    assert f"node {blind['NodeManagerAddress']} ({blind['NodeID']})" in text
    assert not any(node["NodeID"] in text for node in ray.nodes() if node != blind)
    assert str(path / "run") in text
    assert "hint: set RunConfig(storage_path=...) to a directory that the driver and all nodes share" in text
    assert not (tmp_path / "ran").exists()
    assert not (path / "run" / ".probe").exists()


def test_it_is_looked_at_once_in_a_run(tmp_path: Path, monkeypatch) -> None:
    asked = []
    begin = shared.Probe.begin
    monkeypatch.setattr(shared.Probe, "begin", lambda probe: (asked.append(probe.asked.name), begin(probe)))

    def dies_once() -> None:
        if not (tmp_path / "died").exists():
            (tmp_path / "died").touch()
            os.kill(os.getpid(), signal.SIGKILL)
        train.report({"done": 1})

    DataParallelTrainer(
        dies_once,
        scaling_config=ScalingConfig(1),
        run_config=RunConfig(name="run", storage_path=tmp_path, failure_config=FailureConfig(max_failures=1)),
    ).fit()
    events = [json.loads(line[9:])["type"] for line in (tmp_path / "run" / "journal.jsonl").read_text().splitlines()]
    assert events.count("WorkersStopped") == 2
    assert len(asked) == 1
    assert not (tmp_path / "run" / ".probe").exists()


def test_a_store_that_nodes_cannot_reach_is_found_with_the_node(
    s3_environment: Server, tmp_path: Path, monkeypatch
) -> None:
    monkeypatch.setenv("PACELINE_SPOOL_PATH", str(tmp_path / "spool"))
    address = f"s3://{BUCKET}/{uuid.uuid4().hex[:8]}"
    trainer = DataParallelTrainer(
        lambda: (tmp_path / "ran").touch(),
        scaling_config=ScalingConfig(1),
        run_config=RunConfig(
            name="run", storage_path=address, worker_runtime_env={"env_vars": s3_variables("127.0.0.1:9")}
        ),
    )
    with pytest.raises(TrainingFailedError) as raised:
        trainer.fit()
    text = str(raised.value)
    assert f"the run is kept in {address}/run, which cannot be reached from all nodes: node " in text
    assert any(node["NodeID"] in text for node in ray.nodes())
    assert "worker_runtime_env={'env_vars': {...}}" in text
    assert isinstance(raised.value.__cause__, StorageError)
    assert not (tmp_path / "ran").exists()
