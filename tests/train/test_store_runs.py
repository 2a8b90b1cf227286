"""Whole runs in a store: real workers, real servers, killed drivers, faults on the way."""

import functools
import os
import pickle
import shutil
import signal
import uuid
from collections.abc import Callable
from pathlib import Path

import pytest
from training_scripts import HEAD

from faulty_proxy import FaultyProxy
from paceline import train
from paceline._storage.address import open_store_at
from paceline._storage.store import Store
from paceline.train import Checkpoint, CheckpointConfig, Result, RunConfig, RunHeldError, StorageError, ValidationConfig
from paceline.train.driver.run_directory import open_run
from paceline.train.driver.run_spec import RunEnvironment
from servers import AZURITE_KEY, BUCKET, Server, azure_path, s3_variables

SCRIPT = f"""{HEAD}
def function(config):
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
        (directory / f"rank_{{rank}}").write_text(str(step))
        train.report({{"step": step, "start": start}}, checkpoint=Checkpoint.from_directory(directory))
        if step == 3 and not start:
            if rank == 0:
                os.kill(config["driver"], signal.SIGKILL)
            signal.pause()

print("done", fit(function, path=sys.argv[1], name="alpha").metrics)
"""


@pytest.fixture
def spool(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PACELINE_SPOOL_PATH", str(tmp_path / "spool"))
    return tmp_path / "spool"


@pytest.fixture
def s3_path(s3_environment: Server, spool: Path) -> str:
    return f"s3://{BUCKET}/{uuid.uuid4().hex[:8]}"


@pytest.fixture
def proxied_path(s3_proxy: FaultyProxy, spool: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A path in a store whose requests go through the proxy."""
    for name, value in s3_variables(s3_proxy.authority).items():
        monkeypatch.setenv(name, value)
    return f"s3://{BUCKET}/{uuid.uuid4().hex[:8]}"


def _save(steps: int = 3) -> Callable[[], None]:
    def function():
        checkpoint = train.get_checkpoint()
        start = checkpoint.to_dict()["step"] + 1 if checkpoint is not None else 0
        for step in range(start, steps):
            train.report({"step": step}, checkpoint=Checkpoint.from_dict({"step": step}))

    return function


SAVE_THREE = _save()


def _fit(path: str, function: Callable = SAVE_THREE, name: str = "alpha", workers: int = 2, **config) -> Result:
    run_config = RunConfig(name=name, storage_path=path, **config)
    return train.DataParallelTrainer(function, scaling_config=train.ScalingConfig(workers), run_config=run_config).fit()


def _keys(store: Store, below: str = "") -> list[str]:
    return [entry.key for entry in store.list_entries(below)]


def _manifests(store: Store) -> list[str]:
    return [key for key in _keys(store) if key.endswith(".manifest.json")]


@pytest.mark.parametrize(
    "store", [pytest.param("s3", marks=pytest.mark.slow), "s3 without the spool", "azure without the spool"]
)
def test_a_run_goes_on_from_the_store_after_its_driver_was_killed(
    s3_path: str, spool: Path, run_script: Callable, store: str
):
    prefix = s3_path.rpartition("/")[2]
    below = azure_path() if "azure" in store else f"s3://{BUCKET}/{{}}".format
    assert run_script(SCRIPT, below(prefix)).returncode == -signal.SIGKILL
    if "without" in store:
        shutil.rmtree(spool)
    ended = run_script(SCRIPT, below(prefix))
    assert "done {'step': 7, 'start': 4}" in ended.stdout, ended.stdout + ended.stderr
    assert AZURITE_KEY not in ended.stdout + ended.stderr
    result = Result.from_path(below(f"{prefix}/alpha"))
    assert list(result.metrics_dataframe["step"]) == list(range(8))
    result.checkpoint.verify()
    with result.checkpoint.as_directory() as directory:
        assert sorted(os.listdir(directory)) == [".manifest.json", "rank_0", "rank_1", "step"]


def test_what_a_dead_attempt_left_is_in_no_checkpoint_and_goes_when_the_run_is_opened(s3_path: str):
    _fit(s3_path, _save(2))
    store = open_store_at(f"{s3_path}/alpha")
    store.write("attempt_1/checkpoint_000003/.rank_1/left.bin", b"x")
    store.write("attempt_7/checkpoint_000009/left.bin", b"x")
    _fit(s3_path, _save(2))
    assert not [key for key in _keys(store) if "left.bin" in key]
    assert len(_manifests(store)) == 2


def test_a_finished_run_reads_the_same_anywhere_and_a_bit_flip_in_it_is_found(s3_path: str, spool: Path, fit):
    here = _fit(s3_path)
    assert not [path for path in spool.rglob("*") if path.is_file()], "what is in the store is not kept here too"
    assert here.log_dir is None
    there = Result.from_path(f"{s3_path}/alpha")
    assert there.metrics == here.metrics == {"step": 2}
    assert there.checkpoint.path == here.checkpoint.path
    assert there.checkpoint.to_dict() == {"step": 2}
    assert pickle.loads(pickle.dumps(there)).metrics_dataframe["step"].to_list() == [0, 1, 2]
    # A run elsewhere may begin from a checkpoint in a store.
    resumed = fit(lambda: train.get_checkpoint().to_dict(), 1, resume_from_checkpoint=there.checkpoint)
    assert resumed.return_value == {"step": 2}
    store, key = open_store_at(f"{s3_path}/alpha"), "attempt_1/checkpoint_000003/state.json"
    data = bytearray(store.read(key))
    data[5] ^= 1
    store.write(key, bytes(data))
    with pytest.raises(train.CheckpointCorruptError, match="does not match its manifest"):
        there.checkpoint.verify()
    # One that was removed from the store begins anew, whatever the spool says.
    store.delete_all("")
    assert _fit(s3_path).checkpoint.to_dict() == {"step": 2}
    assert len(_manifests(store)) == 3


def test_old_checkpoints_go_and_where_ranks_wrote_one_path_differently_the_lowest_rank_is_kept(s3_path: str, caplog):
    def function():
        rank = train.get_context().get_world_rank()
        for name in (None, None, "last", "last"):
            directory = train.staging_directory()
            (directory / "same").write_text(f"rank {rank}")
            (directory / f"own_{rank}").write_text(f"rank {rank}")
            train.report({}, checkpoint=Checkpoint.from_directory(directory), checkpoint_dir_name=name)

    result = _fit(s3_path, function, checkpoint_config=CheckpointConfig(num_to_keep=2))
    store = open_store_at(f"{s3_path}/alpha")
    newest = ["attempt_1/000004/last/.manifest.json", "attempt_1/checkpoint_000002/.manifest.json"]
    assert _manifests(store) == newest, "of one name, the newest"
    assert not [key for key in _keys(store) if "checkpoint_000001" in key or "000003" in key]
    result.checkpoint.verify()
    with result.checkpoint.as_directory() as directory:
        read = {name: Path(directory, name).read_text() for name in os.listdir(directory) if name[0] != "."}
    assert read == {"same": "rank 0", "own_0": "rank 0", "own_1": "rank 1"}
    assert "ranks wrote different contents to same" in caplog.text


def test_a_second_driver_is_told_who_holds_the_run(s3_path: str):
    with open_run(RunConfig(name="alpha", storage_path=s3_path).location, RunEnvironment(), print):
        with pytest.raises(RunHeldError, match=f"is being written by process {os.getpid()}"):
            _fit(s3_path)
    assert _fit(s3_path).checkpoint.to_dict() == {"step": 2}


def test_a_store_that_refuses_is_told_before_any_worker_starts(proxied_path, s3_proxy, spool):
    s3_proxy.plant("403", times=1000)
    with pytest.raises(StorageError, match="hint: check the credentials"):
        _fit(proxied_path)
    assert not list(spool.rglob("rank_*.log"))


def test_a_store_that_cannot_be_reached_is_told_with_what_to_check(spool: Path, monkeypatch: pytest.MonkeyPatch):
    for name, value in {**s3_variables("127.0.0.1:1"), "PACELINE_STORAGE_PATIENCE_S": "0.5"}.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(StorageError, match=r"runs/alpha(.|\n)*hint: .*credentials.*endpoint.*region.*network"):
        _fit("s3://bucket/runs")
    assert not spool.exists()


def test_training_goes_on_with_the_last_good_checkpoint_while_few_enough_saves_fail(proxied_path, s3_proxy):
    s3_proxy.plant("403", method="PUT", path="checkpoint_000002/.rank_1", times=1000)
    s3_proxy.plant("403", method="PUT", path="checkpoint_000004/.manifest", times=1000)
    result = _fit(proxied_path, _save(5), checkpoint_config=CheckpointConfig(max_failed_saves=1))
    assert [checkpoint.to_dict()["step"] for checkpoint, _ in result.best_checkpoints] == [0, 2, 4]
    assert list(result.metrics_dataframe["step"]) == [0, 1, 2, 3, 4]


def test_one_more_failed_save_in_a_row_than_allowed_ends_the_run(proxied_path: str, s3_proxy: FaultyProxy):
    for number in (2, 3):
        s3_proxy.plant("403", method="PUT", path=f"checkpoint_00000{number}/.rank_1", times=1000)
    with pytest.raises(train.TrainingFailedError, match=r"2 saves in a row, max_failed_saves=1") as raised:
        _fit(proxied_path, _save(5), checkpoint_config=CheckpointConfig(max_failed_saves=1))
    assert f"last checkpoint: {proxied_path}/alpha/attempt_1/checkpoint_000001 (report 1)" in str(raised.value)
    assert raised.value.result.checkpoint.to_dict() == {"step": 0}
    assert isinstance(raised.value.worker_failures[1], StorageError)


@pytest.mark.slow
def test_a_hang_while_a_checkpoint_is_stored_names_the_store(proxied_path: str, s3_proxy: FaultyProxy):
    s3_proxy.plant("stall", method="PUT", path="checkpoint_000002/.rank_1", times=1000)
    failures = train.FailureConfig(hang_timeout_s=3, hang_action="fail")
    sentence = rf"rank 1 has stood .* storing the checkpoint of report 2 at {proxied_path}/alpha"
    with pytest.raises(train.TrainingFailedError, match=sentence):
        _fit(proxied_path, failure_config=failures)


def test_a_store_without_conditional_puts_keeps_a_run_too(gcs_server: Server, spool: Path):
    path = f"gs://anonymous@{BUCKET}/{uuid.uuid4().hex[:8]}?scheme=http&endpoint_override={gcs_server.authority}"
    result = _fit(path)
    assert result.checkpoint.to_dict() == {"step": 2}
    assert list(result.metrics_dataframe["step"]) == [0, 1, 2]


@pytest.mark.slow
def test_checkpoints_in_a_store_are_validated_and_a_notice_makes_the_last_one(s3_path: str, fit_in):
    def validate(checkpoint: Checkpoint) -> dict[str, int]:
        return {"found": 10 * checkpoint.to_dict()["step"]}

    def function():
        last = train.get_checkpoint()
        for step in range(last.to_dict()["step"] + 1 if last else 0, 500):
            if step == 3 and last is None:
                os.kill(os.getpid(), signal.SIGTERM)
            saved = Checkpoint.from_dict({"step": step}) if step in (1, 499) else None
            train.collective.barrier()
            on_stop = functools.partial(Checkpoint.from_dict, {"step": step})
            train.report({"step": step}, checkpoint=saved, validation=saved is not None, checkpoint_on_stop=on_stop)

    with pytest.raises(train.PreemptionError) as caught:
        fit_in(s3_path, function, validation_config=ValidationConfig(validate))
    assert caught.value.result.checkpoint.to_dict() == {"step": caught.value.result.metrics["step"]}
    result = fit_in(s3_path, function, validation_config=ValidationConfig(validate))
    found = {metrics["step"]: metrics.get("found") for _, metrics in result.best_checkpoints}
    assert (found[1], found[499]) == (10, 4990)
    assert result.metrics_dataframe["step"].tolist() == list(range(500))
