"""Runs on a cluster that are kept in a store: each node has a spool of its own, and nothing of it is missing."""

import os
import signal
import time
import uuid
from pathlib import Path

import msgspec
import psutil
import pytest
from left_over import MARK

from paceline import train
from paceline._core.codec import unsealed
from paceline._storage.address import store_at
from paceline.train import (
    Checkpoint,
    DataParallelTrainer,
    FailureConfig,
    Result,
    RunConfig,
    ScalingConfig,
)
from servers import BUCKET, Server, s3_variables


@pytest.fixture
def path(s3_environment: Server, tmp_path: Path, monkeypatch) -> str:
    monkeypatch.setenv("PACELINE_SPOOL_PATH", str(tmp_path / "driver"))
    return f"s3://{BUCKET}/{uuid.uuid4().hex[:8]}"


@pytest.fixture
def variables(s3_server: Server, tmp_path: Path) -> dict[str, str]:
    """Of the nodes: the store's, and a spool that is not the driver's."""
    return {**s3_variables(s3_server.authority), "PACELINE_SPOOL_PATH": str(tmp_path / "nodes")}


def test_logs_reports_and_checkpoints_of_all_ranks_are_in_the_store(
    path: str, variables: dict[str, str], tmp_path: Path, capfd
) -> None:
    def loop() -> None:
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

    result = DataParallelTrainer(
        loop,
        scaling_config=ScalingConfig(2, placement_strategy="STRICT_SPREAD"),
        run_config=RunConfig(
            name="run",
            storage_path=path,
            worker_runtime_env={"env_vars": variables},
            failure_config=FailureConfig(max_failures=1),
        ),
    ).fit()
    assert result.metrics["step"] == 3
    assert result.checkpoint.to_dict() == {"step": 3}
    store = store_at(f"{path}/run")
    logs = {entry.key: store.read(entry.key).decode() for entry in store.entries("logs")}
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
    assert [entry.key for entry in store.entries(".probe")] == []
    # What the nodes had goes with the actors.
    deadline = time.monotonic() + 30
    while left := [str(found) for found in (tmp_path / "nodes").rglob("*") if found.is_file()]:
        assert time.monotonic() < deadline, left
        time.sleep(0.02)


def _actors(cluster: str) -> list[psutil.Process]:
    """The actors around workers, on this cluster and no other."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.name().startswith("ray::Shell") and process.environ().get(MARK) == cluster:
                found.append(process)
        except psutil.Error:
            continue
    return found


def test_reports_that_a_lost_actor_did_not_tell_are_in_the_journal_of_a_shared_directory(tmp_path: Path) -> None:
    def loop() -> None:
        if train.get_checkpoint() is not None or (tmp_path / "again").exists():
            return
        (tmp_path / "again").touch()
        (actor,) = _actors(os.environ[MARK])
        for number in range(500):
            train.report({"number": number})
        actor.kill()
        signal.pause()

    DataParallelTrainer(
        loop,
        scaling_config=ScalingConfig(1),
        run_config=RunConfig(name="run", storage_path=tmp_path, failure_config=FailureConfig(max_failures=1)),
    ).fit()
    lines = (tmp_path / "run" / "journal.jsonl").read_bytes().splitlines(keepends=True)
    events = [msgspec.json.decode(unsealed(line)) for line in lines]
    assert [event["seq"] for event in events if event["type"] == "Reported"] == [*range(1, 501)]
    assert [event["type"] for event in events].count("WorkerFailed") == 1
