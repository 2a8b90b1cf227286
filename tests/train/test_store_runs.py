"""Whole runs in a store: real workers, real servers, killed drivers, faults on the way."""

import functools
import os
import pickle
import shutil
import signal
import uuid
from pathlib import Path

import pytest
from fits import count_up, fit_in
from training_scripts import HEAD

from paceline import train
from paceline._storage.address import open_store_at
from paceline.train import Checkpoint, CheckpointConfig, Result, RunConfig, RunHeldError, StorageError, ValidationConfig
from paceline.train.driver.run_directory import open_run
from paceline.train.driver.run_spec import RunEnvironment
from servers import AZURITE_KEY, BUCKET, azure_path, s3_variables

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
        (directory / "same").write_text(str(rank))
        train.report({{"step": step, "start": start}}, checkpoint=Checkpoint.from_directory(directory))
        if step == 3 and not start:
            if rank == 0:
                os.kill(config["driver"], signal.SIGKILL)
            signal.pause()

print("done", fit(function, path=sys.argv[1], name="alpha").metrics)
"""


@pytest.fixture
def spool(tmp_path, monkeypatch):
    monkeypatch.setenv("PACELINE_SPOOL_PATH", str(tmp_path / "spool"))
    return tmp_path / "spool"


@pytest.fixture
def s3_path(s3_environment, spool):
    return f"s3://{BUCKET}/{uuid.uuid4().hex[:8]}"


@pytest.fixture
def proxied_path(s3_proxy, spool, monkeypatch):
    """A path in a store whose requests go through the proxy."""
    for name, value in s3_variables(s3_proxy.authority).items():
        monkeypatch.setenv(name, value)
    return f"s3://{BUCKET}/{uuid.uuid4().hex[:8]}"


SAVE_THREE = count_up(3)
_fit = functools.partial(fit_in, name="alpha")


def _keys(store):
    return [entry.key for entry in store.list_entries("")]


def _manifests(store):
    return [key for key in _keys(store) if key.endswith(".manifest.json")]


@pytest.mark.parametrize(
    "store", [pytest.param("s3", marks=pytest.mark.slow), "s3 without the spool", "azure without the spool"]
)
def test_a_run_goes_on_from_the_store_after_its_driver_was_killed(s3_path, spool, run_script, store):
    prefix = s3_path.rpartition("/")[2]
    below = azure_path() if "azure" in store else f"s3://{BUCKET}/{{}}".format
    assert run_script(SCRIPT, below(prefix)).returncode == -signal.SIGKILL
    if "without" in store:
        shutil.rmtree(spool)
    ended = run_script(SCRIPT, below(prefix))
    assert "done {'step': 7, 'start': 4}" in ended.stdout, ended.stdout + ended.stderr
    assert "ranks wrote different contents to same; keeping those of the lowest rank" in ended.stderr
    assert AZURITE_KEY not in ended.stdout + ended.stderr
    result = Result.from_path(below(f"{prefix}/alpha"))
    assert list(result.metrics_dataframe["step"]) == list(range(8))
    result.checkpoint.verify()
    with result.checkpoint.as_directory() as directory:
        assert sorted(os.listdir(directory)) == [".manifest.json", "rank_0", "rank_1", "same", "step"]
        assert Path(directory, "same").read_text() == "0"


def test_what_a_dead_attempt_left_is_in_no_checkpoint_and_goes_when_the_run_is_opened(s3_path):
    _fit(s3_path, count_up(2))
    store = open_store_at(f"{s3_path}/alpha")
    store.write("attempt_1/checkpoint_000003/.rank_1/left.bin", b"x")
    store.write("attempt_7/checkpoint_000009/left.bin", b"x")
    _fit(s3_path, count_up(2))
    assert not [key for key in _keys(store) if "left.bin" in key]
    assert len(_manifests(store)) == 2


def test_a_finished_run_reads_the_same_anywhere_and_a_bit_flip_in_it_is_found(s3_path, spool, fit):
    here = _fit(s3_path, SAVE_THREE)
    assert not [path for path in spool.rglob("*") if path.is_file()], "what is in the store is not kept here too"
    assert here.log_dir is None
    there = Result.from_path(f"{s3_path}/alpha")
    assert there.metrics == here.metrics == {"i": 2, "start": 0}
    assert there.checkpoint.path == here.checkpoint.path
    assert there.checkpoint.to_dict()["i"] == 2
    assert pickle.loads(pickle.dumps(there)).metrics_dataframe["i"].to_list() == [0, 1, 2]
    # A run elsewhere may begin from a checkpoint in a store.
    resumed = fit(lambda: train.get_checkpoint().to_dict()["i"], 1, resume_from_checkpoint=there.checkpoint)
    assert resumed.return_value == 2
    store, key = open_store_at(f"{s3_path}/alpha"), "attempt_1/checkpoint_000003/state.json"
    data = bytearray(store.read(key))
    data[5] ^= 1
    store.write(key, bytes(data))
    with pytest.raises(train.CheckpointCorruptError, match="does not match its manifest"):
        there.checkpoint.verify()
    # One that was removed from the store begins anew, whatever the spool says.
    store.delete_all("")
    assert _fit(s3_path, SAVE_THREE).checkpoint.to_dict()["i"] == 2
    assert len(_manifests(store)) == 3


def test_a_second_driver_is_told_who_holds_the_run(s3_path):
    with open_run(RunConfig(name="alpha", storage_path=s3_path).location, RunEnvironment(), print):
        with pytest.raises(RunHeldError, match=f"is being written by process {os.getpid()}"):
            _fit(s3_path, SAVE_THREE)
    assert _fit(s3_path, SAVE_THREE).checkpoint.to_dict()["i"] == 2


def test_a_store_that_cannot_be_reached_is_told_with_what_to_check(spool, monkeypatch):
    for name, value in {**s3_variables("127.0.0.1:1"), "PACELINE_STORAGE_PATIENCE_S": "0.5"}.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(StorageError, match=r"runs/alpha(.|\n)*hint: .*credentials.*endpoint.*region.*network"):
        _fit("s3://bucket/runs", SAVE_THREE)
    assert not spool.exists()


def test_training_goes_on_with_the_last_good_checkpoint_while_few_enough_saves_fail(proxied_path, s3_proxy):
    s3_proxy.plant("403", method="PUT", path="checkpoint_000002/.rank_1", times=1000)
    s3_proxy.plant("403", method="PUT", path="checkpoint_000004/.manifest", times=1000)
    result = _fit(proxied_path, count_up(5), checkpoint_config=CheckpointConfig(max_failed_saves=1))
    assert [checkpoint.to_dict()["i"] for checkpoint, _ in result.best_checkpoints] == [0, 2, 4]
    assert list(result.metrics_dataframe["i"]) == [0, 1, 2, 3, 4]


def test_one_more_failed_save_in_a_row_than_allowed_ends_the_run(proxied_path, s3_proxy):
    for number in (2, 3):
        s3_proxy.plant("403", method="PUT", path=f"checkpoint_00000{number}/.rank_1", times=1000)
    with pytest.raises(train.TrainingFailedError, match=r"2 saves in a row, max_failed_saves=1") as raised:
        _fit(proxied_path, count_up(5), checkpoint_config=CheckpointConfig(max_failed_saves=1))
    assert f"last checkpoint: {proxied_path}/alpha/attempt_1/checkpoint_000001 (report 1)" in str(raised.value)
    assert raised.value.result.checkpoint.to_dict()["i"] == 0
    assert isinstance(raised.value.worker_failures[1], StorageError)


@pytest.mark.slow
def test_a_hang_while_a_checkpoint_is_stored_names_the_store(proxied_path, s3_proxy):
    s3_proxy.plant("stall", method="PUT", path="checkpoint_000002/.rank_1", times=1000)
    failures = train.FailureConfig(hang_timeout_s=3, hang_action="fail")
    sentence = rf"rank 1 has been stuck .* storing the checkpoint of report 2 at {proxied_path}/alpha"
    with pytest.raises(train.TrainingFailedError, match=sentence):
        _fit(proxied_path, count_up(3), failure_config=failures)


def test_a_store_without_conditional_puts_keeps_a_run_too(gcs_server, spool):
    path = f"gs://anonymous@{BUCKET}/{uuid.uuid4().hex[:8]}?scheme=http&endpoint_override={gcs_server.authority}"
    result = _fit(path, SAVE_THREE)
    assert result.checkpoint.to_dict()["i"] == 2
    assert list(result.metrics_dataframe["i"]) == [0, 1, 2]


@pytest.mark.slow
def test_checkpoints_in_a_store_are_validated_and_a_notice_makes_the_last_one(s3_path):
    def validate(checkpoint):
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
