"""Whole runs that are kept in a store: real workers, real servers, drivers that are killed, faults on the way."""

import os
import pickle
import shutil
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable
from pathlib import Path

import pytest

from faulty_proxy import FaultyProxy
from paceline import train
from paceline._storage.address import store_at
from paceline._storage.store import Store
from paceline.train import (
    Checkpoint,
    CheckpointConfig,
    DataParallelTrainer,
    PreemptionError,
    Result,
    RunConfig,
    RunHeldError,
    ScalingConfig,
    StorageError,
    TrainingFailedError,
    ValidationConfig,
    ValidationTaskConfig,
)
from paceline.train.drive import Seams, opened
from servers import AZURITE_KEY, BUCKET, Server, azure_path, s3_variables

SCRIPT = """
import os, sys, time
from pathlib import Path
from paceline import train
from paceline.train import Checkpoint, DataParallelTrainer, RunConfig, ScalingConfig

def train_func():
    checkpoint = train.get_checkpoint()
    start = 0
    if checkpoint is not None:
        with checkpoint.as_directory() as directory:
            start = int(Path(directory, "step").read_text()) + 1
            ranks = sorted(p.name for p in Path(directory).iterdir() if p.name.startswith("rank"))
            assert ranks == ["rank_0", "rank_1"], ranks
    rank = train.get_context().get_world_rank()
    for step in range(start, 8):
        directory = train.staging_directory()
        (directory / "step").write_text(str(step))
        (directory / f"rank_{rank}").write_text(str(step))
        train.report({"step": step, "start": start}, checkpoint=Checkpoint.from_directory(directory))
        if rank == 0:
            print("step", step, flush=True)
        if step == int(sys.argv[2]) and not start:
            Path("reached").touch()
            time.sleep(60)

if __name__ == "__main__":
    trainer = DataParallelTrainer(
        train_func, scaling_config=ScalingConfig(2), run_config=RunConfig(name="alpha", storage_path=sys.argv[1])
    )
    result = trainer.fit()
    print("done", result.metrics)
"""


@pytest.fixture
def spool(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PACELINE_SPOOL_PATH", str(tmp_path / "spool"))
    return tmp_path / "spool"


@pytest.fixture
def s3_path(s3_environment: Server, spool: Path) -> str:
    return f"s3://{BUCKET}/{uuid.uuid4().hex[:8]}"


def _save(steps: int = 3) -> Callable[[], None]:
    def function() -> None:
        checkpoint = train.get_checkpoint()
        start = checkpoint.to_dict()["step"] + 1 if checkpoint is not None else 0
        for step in range(start, steps):
            train.report({"step": step}, checkpoint=Checkpoint.from_dict({"step": step}))

    return function


SAVE_THREE = _save()


def _fit(path: str, function: Callable = SAVE_THREE, name: str = "alpha", workers: int = 2, **config) -> Result:
    run_config = RunConfig(name=name, storage_path=path, **config)
    return DataParallelTrainer(function, scaling_config=ScalingConfig(workers), run_config=run_config).fit()


def _keys(store: Store, below: str = "") -> list[str]:
    return [entry.key for entry in store.entries(below)]


def _killed_at(script: Path, path: str, step: int) -> None:
    """Run the script until it stands after a step, and kill its driver."""
    reached = script.parent / "reached"
    command = [sys.executable, str(script), path, str(step)]
    with (script.parent / "out").open("wb") as out:
        driver = subprocess.Popen(command, cwd=script.parent, stdout=out, stderr=out)
        deadline = time.monotonic() + 60
        while not reached.exists():
            assert driver.poll() is None, (script.parent / "out").read_text()
            assert time.monotonic() < deadline, (script.parent / "out").read_text()
            time.sleep(0.05)
        driver.send_signal(signal.SIGKILL)
        driver.wait()


@pytest.mark.parametrize("lost_spool", [False, True], ids=["spool_there", "spool_lost"])
def test_a_run_goes_on_from_the_store_after_its_driver_was_killed(
    s3_path: str, spool: Path, tmp_path: Path, run_script: Callable, lost_spool: bool
) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    _killed_at(script, s3_path, 3)
    if lost_spool:
        shutil.rmtree(spool)
    ended = run_script(SCRIPT, s3_path, "3")
    assert "done {'step': 7, 'start': 4}" in ended.stdout, ended.stdout + ended.stderr
    result = Result.from_path(f"{s3_path}/alpha")
    assert list(result.metrics_dataframe["step"]) == list(range(8))
    result.checkpoint.verify()
    with result.checkpoint.as_directory() as directory:
        assert sorted(os.listdir(directory)) == [".manifest.json", "rank_0", "rank_1", "step"]


def test_a_run_on_azure_goes_on_after_its_driver_was_killed(spool: Path, tmp_path: Path, run_script: Callable) -> None:
    below = azure_path()
    prefix = uuid.uuid4().hex[:8]
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    _killed_at(script, below(prefix), 3)
    shutil.rmtree(spool)
    ended = run_script(SCRIPT, below(prefix), "3")
    assert "done {'step': 7, 'start': 4}" in ended.stdout, ended.stdout + ended.stderr
    assert AZURITE_KEY not in ended.stdout + ended.stderr
    result = Result.from_path(below(f"{prefix}/alpha"))
    assert list(result.metrics_dataframe["step"]) == list(range(8))
    result.checkpoint.verify()


def test_what_a_dead_attempt_left_is_in_no_checkpoint_and_goes_when_the_run_is_opened(s3_path: str) -> None:
    _fit(s3_path, _save(2))
    store = store_at(f"{s3_path}/alpha")
    store.write("attempt_1/checkpoint_000003/.rank_1/left.bin", b"x")
    store.write("attempt_7/checkpoint_000009/left.bin", b"x")
    _fit(s3_path, _save(2))
    assert not [key for key in _keys(store) if "left.bin" in key]
    assert len([key for key in _keys(store) if key.endswith(".manifest.json")]) == 2


def test_a_finished_run_reads_the_same_anywhere(s3_path: str, spool: Path) -> None:
    here = _fit(s3_path)
    shutil.rmtree(spool)
    there = Result.from_path(f"{s3_path}/alpha")
    assert there.metrics == here.metrics == {"step": 2}
    assert there.checkpoint.path == here.checkpoint.path
    assert there.checkpoint.to_dict() == {"step": 2}
    assert pickle.loads(pickle.dumps(there)).metrics_dataframe["step"].to_list() == [0, 1, 2]


def test_retention_deletes_in_the_store(s3_path: str) -> None:
    _fit(s3_path, checkpoint_config=CheckpointConfig(num_to_keep=1))
    kept = {key.split("/")[1] for key in _keys(store_at(f"{s3_path}/alpha")) if key.startswith("attempt_")}
    assert kept == {"checkpoint_000003"}


def test_a_name_chosen_again_leaves_only_the_newest(s3_path: str) -> None:
    def function() -> None:
        for step in range(3):
            train.report({}, checkpoint=Checkpoint.from_dict({"step": step}), checkpoint_dir_name="last")

    result = _fit(s3_path, function)
    assert result.checkpoint.to_dict() == {"step": 2}
    manifests = [key for key in _keys(store_at(f"{s3_path}/alpha")) if key.endswith(".manifest.json")]
    assert manifests == ["attempt_1/000003/last/.manifest.json"]


def test_where_ranks_wrote_one_path_differently_the_lowest_rank_is_kept(s3_path: str) -> None:
    def function() -> None:
        rank = train.get_context().get_world_rank()
        directory = train.staging_directory()
        (directory / "same").write_text(f"rank {rank}")
        (directory / f"own_{rank}").write_text(f"rank {rank}")
        train.report({}, checkpoint=Checkpoint.from_directory(directory))

    result = _fit(s3_path, function)
    result.checkpoint.verify()
    with result.checkpoint.as_directory() as directory:
        read = {name: Path(directory, name).read_text() for name in os.listdir(directory) if name[0] != "."}
    assert read == {"same": "rank 0", "own_0": "rank 0", "own_1": "rank 1"}


@pytest.mark.parametrize("harm", ["missing", "cut"])
def test_a_broken_checkpoint_is_set_aside_and_the_one_before_it_used(s3_path: str, harm: str) -> None:
    _fit(s3_path, _save(3))
    store = store_at(f"{s3_path}/alpha")
    key = "attempt_1/checkpoint_000003/state.json"
    store.delete(key) if harm == "missing" else store.write(key, b"{")

    def function() -> None:
        step = train.get_checkpoint().to_dict()["step"]
        train.report({"from": step}, checkpoint=Checkpoint.from_dict({"step": step}))

    # A run that was complete is not run again: take the line that says so away.
    last = _keys(store, "journal")[-1]
    store.delete(last)
    shutil.rmtree(os.environ["PACELINE_SPOOL_PATH"])
    result = _fit(s3_path, function, workers=1)
    assert result.metrics["from"] == 1
    assert any(key.startswith(".broken/") for key in _keys(store))


def test_a_bit_flip_is_found_when_a_checkpoint_is_read(s3_path: str) -> None:
    result = _fit(s3_path)
    store = store_at(f"{s3_path}/alpha")
    key = "attempt_1/checkpoint_000003/state.json"
    data = bytearray(store.read(key))
    data[5] ^= 1
    store.write(key, bytes(data))
    with pytest.raises(train.CheckpointCorruptError, match="is not what was written"):
        result.checkpoint.verify()


def test_a_second_driver_is_told_who_holds_the_run(s3_path: str) -> None:
    with opened(RunConfig(name="alpha", storage_path=s3_path).home, Seams(), print):
        with pytest.raises(RunHeldError, match=f"is being written by process {os.getpid()}"):
            _fit(s3_path)
    assert _fit(s3_path).checkpoint.to_dict() == {"step": 2}


def test_a_missing_bucket_is_told_before_any_worker_starts(s3_environment: Server, spool: Path) -> None:
    with pytest.raises(StorageError, match=r"no-such-bucket.*bucket"):
        _fit("s3://no-such-bucket/runs")
    assert not list(spool.rglob("rank_*.log"))


def test_a_store_that_refuses_is_told_before_any_worker_starts(
    s3_proxy: FaultyProxy, spool: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in s3_variables(s3_proxy.authority).items():
        monkeypatch.setenv(name, value)
    s3_proxy.plant("403", times=1000)
    with pytest.raises(StorageError, match="hint: look at the credentials"):
        _fit(f"s3://{BUCKET}/refused")
    assert not list(spool.rglob("rank_*.log"))


@pytest.mark.parametrize("fault", ["500", "503", "reset", "lost reply"])
def test_a_run_outlasts_faults_that_pass(
    s3_proxy: FaultyProxy, spool: Path, monkeypatch: pytest.MonkeyPatch, fault: str
) -> None:
    for name, value in s3_variables(s3_proxy.authority).items():
        monkeypatch.setenv(name, value)
    for part in ("journal", "checkpoint_000002/state", "checkpoint_000002/.manifest", "lease", "list-type"):
        s3_proxy.plant(fault, path=part, times=2)
    path = f"s3://{BUCKET}/{uuid.uuid4().hex[:8]}"
    result = _fit(path)
    assert s3_proxy.left() == 0
    assert result.checkpoint.to_dict() == {"step": 2}
    assert list(result.metrics_dataframe["step"]) == [0, 1, 2]


def test_an_upload_that_stalls_on_one_rank_ends_the_run_with_what_happened(
    s3_proxy: FaultyProxy, spool: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in {**s3_variables(s3_proxy.authority), "PACELINE_STORAGE_PATIENCE_S": "2"}.items():
        monkeypatch.setenv(name, value)
    s3_proxy.plant("stall", method="PUT", path="checkpoint_000002/.rank_1", times=1000)
    with pytest.raises(TrainingFailedError, match="no byte has moved for 2 s") as raised:
        _fit(f"s3://{BUCKET}/{uuid.uuid4().hex[:8]}")
    assert "StorageError" in str(raised.value)
    assert raised.value.result.checkpoint.to_dict() == {"step": 0}


class TestFailedSaves:
    @pytest.fixture
    def path(self, s3_proxy: FaultyProxy, spool: Path, monkeypatch: pytest.MonkeyPatch) -> str:
        for name, value in s3_variables(s3_proxy.authority).items():
            monkeypatch.setenv(name, value)
        return f"s3://{BUCKET}/{uuid.uuid4().hex[:8]}"

    def test_training_goes_on_with_the_last_good_checkpoint_while_few_enough_fail(
        self, path: str, s3_proxy: FaultyProxy
    ) -> None:
        s3_proxy.plant("403", method="PUT", path="checkpoint_000002/.rank_1", times=1000)
        s3_proxy.plant("403", method="PUT", path="checkpoint_000004/.manifest", times=1000)
        result = _fit(path, _save(5), checkpoint_config=CheckpointConfig(max_failed_saves=1))
        assert [checkpoint.to_dict()["step"] for checkpoint, _ in result.best_checkpoints] == [0, 2, 4]
        assert list(result.metrics_dataframe["step"]) == [0, 1, 2, 3, 4]

    def test_one_more_in_a_row_than_may_ends_the_run(self, path: str, s3_proxy: FaultyProxy) -> None:
        for number in (2, 3):
            s3_proxy.plant("403", method="PUT", path=f"checkpoint_00000{number}/.rank_1", times=1000)
        with pytest.raises(TrainingFailedError, match=r"2 saves in a row, max_failed_saves=1") as raised:
            _fit(path, _save(5), checkpoint_config=CheckpointConfig(max_failed_saves=1))
        assert raised.value.result.checkpoint.to_dict() == {"step": 0}

    def test_by_default_the_first_ends_it_and_reaches_all_ranks(self, path: str, s3_proxy: FaultyProxy) -> None:
        s3_proxy.plant("403", method="PUT", path="checkpoint_000002/.rank_1", times=1000)
        with pytest.raises(train.WorkerGroupError, match="the checkpoint could not be staged") as raised:
            _fit(path, _save(5))
        assert isinstance(raised.value.worker_failures[1], StorageError)

    def test_on_a_disk_it_is_the_same(self, tmp_path: Path) -> None:
        def function() -> None:
            for step in range(3):
                directory = train.staging_directory()
                (directory / "step").write_text(str(step))
                if step == 1:
                    os.mkfifo(directory / "pipe")
                train.report({"step": step}, checkpoint=Checkpoint.from_directory(directory))

        result = _fit(str(tmp_path / "runs"), function, checkpoint_config=CheckpointConfig(max_failed_saves=None))
        assert [Path(checkpoint.path).name for checkpoint, _ in result.best_checkpoints] == [
            "checkpoint_000001",
            "checkpoint_000003",
        ]


def test_a_store_without_conditional_puts_keeps_a_run_too(gcs_server: Server, spool: Path) -> None:
    path = f"gs://anonymous@{BUCKET}/{uuid.uuid4().hex[:8]}?scheme=http&endpoint_override={gcs_server.authority}"
    result = _fit(path)
    assert result.checkpoint.to_dict() == {"step": 2}
    assert list(result.metrics_dataframe["step"]) == [0, 1, 2]


def test_a_filesystem_of_fsspec_keeps_a_run_and_travels_to_the_workers(tmp_path: Path, spool: Path) -> None:
    from fsspec.implementations.dirfs import DirFileSystem
    from fsspec.implementations.local import LocalFileSystem

    filesystem = DirFileSystem(str(tmp_path / "kept"), LocalFileSystem())
    result = _fit("runs", storage_filesystem=filesystem)
    assert result.checkpoint.to_dict() == {"step": 2}
    assert (tmp_path / "kept/runs/alpha/attempt_1/checkpoint_000003/.manifest.json").exists()
    again = Result.from_path("runs/alpha", storage_filesystem=filesystem)
    assert again.checkpoint.to_dict() == {"step": 2}


def test_a_run_that_was_removed_from_the_store_begins_anew_whatever_the_spool_says(s3_path: str) -> None:
    _fit(s3_path)
    store = store_at(f"{s3_path}/alpha")
    store.delete_all("")
    result = _fit(s3_path)
    assert result.checkpoint.to_dict() == {"step": 2}
    assert len(result.metrics_dataframe) == 3
    assert len([key for key in _keys(store) if key.endswith(".manifest.json")]) == 3


def test_checkpoints_in_a_store_are_validated_and_a_notice_makes_the_last_one(s3_path: str) -> None:
    def validate(checkpoint: Checkpoint, scale: int) -> dict[str, int]:
        return {"found": scale * checkpoint.to_dict()["step"]}

    def function() -> None:
        last = train.get_checkpoint()
        for step in range(last.to_dict()["step"] + 1 if last else 0, 500):
            if step == 3 and last is None:
                os.kill(os.getpid(), signal.SIGTERM)
            state = {"step": step}
            saved = Checkpoint.from_dict(state) if step in (1, 499) else None
            train.collective.barrier()
            train.report(
                {"step": step},
                checkpoint=saved,
                validation=saved is not None,
                checkpoint_on_stop=lambda state=state: Checkpoint.from_dict(state),
            )

    def trainer() -> DataParallelTrainer:
        return DataParallelTrainer(
            function,
            scaling_config=ScalingConfig(2),
            run_config=RunConfig(name="alpha", storage_path=s3_path),
            validation_config=ValidationConfig(validate, ValidationTaskConfig(fn_kwargs={"scale": 10})),
        )

    with pytest.raises(PreemptionError) as caught:
        trainer().fit()
    assert caught.value.result.checkpoint.to_dict() == {"step": caught.value.result.metrics["step"]}
    result = trainer().fit()
    found = {metrics["step"]: metrics.get("found") for _, metrics in result.best_checkpoints}
    assert (found[1], found[499]) == (10, 4990)
    assert result.metrics_dataframe["step"].tolist() == list(range(500))


def test_a_run_begins_from_a_checkpoint_that_is_in_a_store(s3_path: str, tmp_path: Path) -> None:
    def first() -> None:
        train.report({}, checkpoint=Checkpoint.from_dict({"from": "the store"}))

    def second() -> None:
        given = train.get_checkpoint()
        train.report({"given": given.to_dict() if given is not None else None})

    before = DataParallelTrainer(first, run_config=RunConfig(name="first", storage_path=s3_path)).fit()
    assert before.checkpoint is not None
    after = DataParallelTrainer(
        second,
        run_config=RunConfig(name="second", storage_path=tmp_path),
        resume_from_checkpoint=before.checkpoint,
    ).fit()
    assert after.metrics == {"given": {"from": "the store"}}
