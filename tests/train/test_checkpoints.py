"""Checkpoints of a run: the ways in, what is kept, what is seen."""

import fcntl
import os
import shutil
import tempfile
import threading
import time
from pathlib import Path

import fsspec
import numpy as np
import pytest

from paceline import train
from paceline.data import from_items
from paceline.data.preprocessors import StandardScaler
from paceline.train import Checkpoint, CheckpointUploadMode, WorkerGroupError


def names(result):
    return sorted(path.name for path in Path(result.path).glob("*") if path.is_dir() and "check" in path.name)


def test_directories_are_copied_staged_ones_moved_async_ones_removed_and_a_name_may_be_chosen_again(fit, tmp_path):
    mine = tmp_path / "mine"
    (mine / "sub").mkdir(parents=True)
    (mine / "sub" / "model.txt").write_text("weights")

    def function():
        is_first = train.get_context().get_world_rank() == 0
        train.report({}, checkpoint=Checkpoint.from_directory(mine) if is_first else None)

        staged = train.staging_directory()
        (staged / "model.bin").write_bytes(b"x" * 1000)
        inode = (staged / "model.bin").stat().st_ino
        train.report({}, checkpoint=Checkpoint.from_directory(staged) if is_first else None)
        assert staged.exists() != is_first
        assert not is_first or Path(train.get_checkpoint().path, "model.bin").stat().st_ino == inode

        given = Path(tempfile.mkdtemp(dir=tmp_path))
        (given / "x").write_text("1")
        checkpoint = Checkpoint.from_directory(given)
        train.report({}, checkpoint=checkpoint, checkpoint_upload_mode=CheckpointUploadMode.ASYNC)
        train.get_all_reported_checkpoints()
        assert not given.exists()

        for i in range(2):
            train.report({}, checkpoint=Checkpoint.from_dict({"i": i}), checkpoint_dir_name="checkpoint_last")

    result = fit(function)
    assert names(result) == [*(f"checkpoint_00000{number}" for number in (1, 2, 3)), "checkpoint_last"]
    assert (mine / "sub" / "model.txt").exists()
    assert not (Path(result.path) / ".staging").exists()
    copied, _, removed, _ = (Path(checkpoint.path) for checkpoint, _ in result.best_checkpoints)
    assert (copied / "sub" / "model.txt").read_text() == "weights"
    assert (removed / "x").read_text() == "1"
    assert result.checkpoint.to_dict() == {"i": 1}


def test_no_upload_commits_files_where_they_lie_once_and_none_that_lie_elsewhere(fit, tmp_path):
    def function():
        path = Path(train.get_context().get_storage().build_checkpoint_path_from_name("checkpoint_mine"))
        path.mkdir(exist_ok=True)
        (path / f"shard-{train.get_context().get_world_rank()}").write_text("data")
        train.collective.barrier()
        train.report(
            {}, checkpoint=Checkpoint.from_directory(path), checkpoint_upload_mode=CheckpointUploadMode.NO_UPLOAD
        )
        assert train.get_checkpoint().path == str(path)
        refusals = {path: "is already a committed checkpoint", tmp_path: "must be a directory directly in"}
        for directory, message in refusals.items():
            checkpoint = Checkpoint.from_directory(directory)
            with pytest.raises(ValueError, match=message):
                train.report({}, checkpoint=checkpoint, checkpoint_upload_mode=CheckpointUploadMode.NO_UPLOAD)

    result = fit(function)
    assert names(result) == ["checkpoint_mine"]
    assert Path(result.checkpoint.path, "shard-1").read_text() == "data"


@pytest.mark.parametrize("mode", [CheckpointUploadMode.SYNC, CheckpointUploadMode.ASYNC])
def test_notes_on_a_state_go_with_it_and_those_on_a_committed_checkpoint_do_not_break_its_check(mode, fit):
    def function():
        if train.get_checkpoint() is None:
            checkpoint = Checkpoint.from_dict({"x": 1})
            checkpoint.set_metadata({"note": "good"})
            checkpoint.update_metadata({"rank": train.get_context().get_world_rank()})
            train.report({}, checkpoint=checkpoint, checkpoint_upload_mode=mode)
            train.get_all_reported_checkpoints()
            train.collective.barrier()
            if train.get_context().get_world_rank() == 0:
                train.get_checkpoint().update_metadata({"more": 1})
                os._exit(1)
            train.collective.barrier()

    kept = fit(function, max_failures=1).checkpoint
    assert kept.get_metadata() == {"note": "good", "rank": 0, "more": 1}
    assert kept.to_dict() == {"x": 1}
    kept.verify()


@pytest.mark.parametrize("make", [Checkpoint.from_directory, lambda path: Checkpoint.from_dict({"x": 1})])
def test_metadata_is_json_that_can_be_updated_and_is_copied_along(make, tmp_path):
    (tmp_path / "mine").mkdir()
    checkpoint = make(tmp_path / "mine")
    assert checkpoint.get_metadata() == {}
    checkpoint.set_metadata({"a": 1})
    checkpoint.update_metadata({"b": [2]})
    with pytest.raises(TypeError):
        checkpoint.set_metadata({"a": object()})
    assert checkpoint.get_metadata() == {"a": 1, "b": [2]}
    assert Checkpoint(checkpoint.to_directory(tmp_path / "copy")).get_metadata() == {"a": 1, "b": [2]}
    assert Checkpoint(checkpoint.path).get_metadata() == {"a": 1, "b": [2]}
    checkpoint.set_metadata({"a": 2})
    assert Checkpoint(checkpoint.path).get_metadata() == checkpoint.get_metadata() == {"a": 2}


def test_a_checkpoint_is_not_a_path(tmp_path):
    with pytest.raises(TypeError, match="as_directory"):
        os.fspath(Checkpoint(tmp_path))
    assert repr(Checkpoint(tmp_path)) == f"Checkpoint(filesystem=local, path={tmp_path})"


def test_an_async_checkpoint_that_cannot_be_committed_is_raised_at_the_latest_when_the_function_ends(fit, tmp_path):
    def function():
        root = Path(train.get_context().get_storage().experiment_fs_path)
        (root / "checkpoint_000001").write_text("a file stands in the way")
        (root / ".trash").write_text("and nothing can be moved aside")
        train.report({}, checkpoint=Checkpoint.from_dict({}), checkpoint_upload_mode=CheckpointUploadMode.ASYNC)

    with pytest.raises(WorkerGroupError, match="report 1: cannot commit the checkpoint"):
        fit(function, 1)


@pytest.mark.parametrize("read", ["to_dict", "to_directory", "as_directory"])
def test_a_damaged_file_is_named_when_the_checkpoint_is_read_and_can_still_be_read_on_request(read, fit):
    def open_checkpoint(**options):
        opened = getattr(train.Result.from_path(path).checkpoint, read)(**options)
        if read == "as_directory":
            with opened:
                pass

    path = fit(lambda: train.report({}, checkpoint=Checkpoint.from_dict({"weights": np.ones(4)})), 1).path
    file = Path(train.Result.from_path(path).checkpoint.path, "state.bin")
    open_checkpoint()
    data = bytearray(file.read_bytes())
    data[3] ^= 0x40
    file.write_bytes(data)
    with pytest.raises(train.CheckpointCorruptError, match=r"state\.bin has a wrong hash"):
        open_checkpoint()
    open_checkpoint(verify=False)


def test_files_are_hashed_on_the_first_read_only_and_never_in_a_directory_of_the_user(fit, tmp_path, monkeypatch):
    from paceline._storage import commit

    result = fit(lambda: train.report({}, checkpoint=Checkpoint.from_dict({"weights": np.ones(4)})), 1)
    hashed, hash_file = [], commit.hash_file
    monkeypatch.setattr(commit, "hash_file", lambda path, name: (hashed.append(name), hash_file(path, name))[1])
    result.checkpoint.to_dict()
    result.checkpoint.to_dict()
    assert sorted(hashed) == ["state.bin", "state.json"]
    mine = tmp_path / "mine"
    mine.mkdir()
    (mine / "model.txt").write_text("weights")
    with Checkpoint.from_directory(mine).as_directory() as directory:
        assert Path(directory) == mine
    assert len(hashed) == 2


def test_a_checkpoint_is_made_from_another_one_and_has_a_preprocessor(tmp_path):
    class Own(Checkpoint):
        pass

    scaler = StandardScaler(["x"]).fit(from_items([{"x": 1.0}, {"x": 3.0}]))
    memory = Checkpoint.from_dict({"x": 1})
    assert memory.get_preprocessor() is None
    memory.set_preprocessor(scaler)
    files = Checkpoint(memory.to_directory(tmp_path / "files"))
    for other in (Own.from_checkpoint(memory), Own.from_checkpoint(files)):
        assert (type(other), other.to_dict()) == (Own, {"x": 1})
        assert other.get_preprocessor().stats_ == scaler.stats_
    with pytest.raises(TypeError, match="other must be a paceline"):
        Own.from_checkpoint("path")


def test_a_checkpoint_is_read_from_a_filesystem_of_fsspec():
    filesystem = fsspec.filesystem("memory")
    filesystem.pipe("/there/model", b"abc")
    checkpoint = Checkpoint("/there", filesystem)
    checkpoint.set_metadata({"a": 1})
    with checkpoint.as_directory() as directory:
        assert Path(directory, "model").read_bytes() == b"abc"
    assert not Path(directory).exists()
    assert checkpoint.get_metadata() == {"a": 1}


def test_of_several_copies_to_one_directory_only_one_copies(tmp_path, monkeypatch):
    source, target = tmp_path / "source", tmp_path / "target"
    Checkpoint.from_dict({"x": 1}).to_directory(source)
    is_copying, may_end, num_copies = threading.Event(), threading.Event(), []
    copy = shutil.copytree

    def copy_slowly(*args, **kwargs):
        num_copies.append(1)
        is_copying.set()
        assert may_end.wait(60)
        return copy(*args, **kwargs)

    monkeypatch.setattr(shutil, "copytree", copy_slowly)
    waits = threading.Event()
    flock = fcntl.flock

    def flock_noticed(descriptor, operation):
        if operation == fcntl.LOCK_EX:
            waits.set()
        flock(descriptor, operation)

    monkeypatch.setattr(fcntl, "flock", flock_noticed)
    threads = [threading.Thread(target=Checkpoint(source).to_directory, args=(target,)) for _ in range(2)]
    threads[0].start()
    assert is_copying.wait(60)
    threads[1].start()
    assert waits.wait(60)
    may_end.set()
    for thread in threads:
        thread.join(60)
    assert (len(num_copies), Checkpoint(target).to_dict()) == (1, {"x": 1})
    Checkpoint(source).to_directory(target)
    assert len(num_copies) == 2, "later copies are made"


def test_reports_may_use_different_upload_modes(fit):
    modes = (CheckpointUploadMode.ASYNC, CheckpointUploadMode.SYNC, CheckpointUploadMode.NO_UPLOAD)

    def function():
        for step, mode in enumerate(modes * 2):
            state = {"step": step, "weights": np.full(1000, step)}
            checkpoint = Checkpoint.from_dict(state)
            if mode is CheckpointUploadMode.NO_UPLOAD:
                path = train.get_context().get_storage().build_checkpoint_path_from_name(f"own_{step}")
                checkpoint = Checkpoint(checkpoint.to_directory(path))
            train.report({"step": step}, checkpoint=checkpoint, checkpoint_upload_mode=mode)
            state["weights"][:] = -1  # What was reported must not change with it.

    result = fit(function, 1)
    states = [checkpoint.to_dict() for checkpoint, _ in result.best_checkpoints]
    assert [(state["step"], state["weights"].tolist()) for state in states] == [(i, [i] * 1000) for i in range(6)]


def test_saves_that_come_faster_than_a_rank_can_write_are_skipped_on_all_ranks_if_asked(fit, tmp_path):
    has_begun, may_write = tmp_path / "begun", tmp_path / "may write"

    def function():
        from paceline._core.system import UsableMemory
        from paceline._storage.files import LocalFiles
        from paceline._worker import upload

        def write_late(self, *args):
            has_begun.touch()
            wait_for(may_write)
            return write(self, *args)

        is_slow, write = train.get_context().get_world_rank() == 1, LocalFiles.write_parts
        upload.usable_memory = lambda: UsableMemory(1 << 40, 1 << 40)
        if is_slow:
            LocalFiles.write_parts = write_late
        for step in range(1, 6):
            checkpoint = Checkpoint.from_dict({"step": step, "rank": is_slow})
            train.report({"step": step}, checkpoint=checkpoint, checkpoint_upload_mode=CheckpointUploadMode.ASYNC)
            if is_slow:
                wait_for(has_begun)
            else:
                train.session._require_context("test").uploader.wait()
        if is_slow:
            may_write.touch()

    result = fit(function, 2, checkpoint_config=train.CheckpointConfig(on_backlog="skip", max_failed_saves=0))
    assert [checkpoint.to_dict()["step"] for checkpoint, _ in result.best_checkpoints] == [1, 5]
    assert list(result.metrics_dataframe["step"]) == [1, 2, 3, 4, 5]
    assert not (tmp_path / "run" / ".staging").exists()


def wait_for(path):
    until = time.monotonic() + 60
    while not path.exists():
        assert time.monotonic() < until
        time.sleep(0.001)
