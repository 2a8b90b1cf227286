"""Checkpoints of a run: the ways in, what is kept, what is seen."""

import json
import os
from pathlib import Path

import numpy as np
import pytest

from paceline import train
from paceline.train import (
    Checkpoint,
    CheckpointConfig,
    CheckpointUploadMode,
    DataParallelTrainer,
    FailureConfig,
    RunConfig,
    ScalingConfig,
    WorkerGroupError,
)


@pytest.fixture
def fit(tmp_path):
    def fit(function, num_workers=2, *, name="run", **run_config):
        return DataParallelTrainer(
            function,
            scaling_config=ScalingConfig(num_workers),
            run_config=RunConfig(name=name, storage_path=tmp_path, **run_config),
        ).fit()

    return fit


def names(result):
    return sorted(path.name for path in Path(result.path).glob("*") if path.is_dir() and "check" in path.name)


def test_a_directory_of_the_users_is_copied_and_stays(fit, tmp_path):
    mine = tmp_path / "mine"
    (mine / "sub").mkdir(parents=True)
    (mine / "model.txt").write_text("weights")
    (mine / "sub" / "more.txt").write_text("more")

    def function():
        checkpoint = Checkpoint.from_directory(mine) if train.get_context().get_world_rank() == 0 else None
        train.report({"x": 1}, checkpoint=checkpoint)

    result = fit(function)
    assert names(result) == ["checkpoint_000001"]
    with result.checkpoint.as_directory() as directory:
        assert Path(directory, "model.txt").read_text() == "weights"
        assert Path(directory, "sub", "more.txt").read_text() == "more"
    assert (mine / "model.txt").exists()


def test_a_staging_directory_is_moved_and_never_copied(fit):
    def function():
        directory = train.staging_directory()
        (directory / "model.bin").write_bytes(b"x" * 1000)
        inode = (directory / "model.bin").stat().st_ino
        if train.get_context().get_world_rank() == 0:
            train.report({}, checkpoint=Checkpoint.from_directory(directory))
            assert not directory.exists()
            assert Path(train.get_checkpoint().path, "model.bin").stat().st_ino == inode
        else:
            train.report({})

    result = fit(function)
    assert not (Path(result.path) / ".staging").exists()


def test_files_of_all_ranks_make_one_checkpoint(fit):
    def function():
        rank = train.get_context().get_world_rank()
        directory = train.staging_directory()
        (directory / f"shard-{rank}.txt").write_text(str(rank))
        (directory / "common.txt").write_text("same")
        train.report({"rank": rank}, checkpoint=Checkpoint.from_directory(directory))

    result = fit(function, 3)
    found = {path.name for path in Path(result.checkpoint.path).iterdir()}
    assert found == {"shard-0.txt", "shard-1.txt", "shard-2.txt", "common.txt", ".manifest.json"}
    manifest = json.loads(Path(result.checkpoint.path, ".manifest.json").read_text())
    assert [entry["path"] for entry in manifest["files"]] == ["common.txt", "shard-0.txt", "shard-1.txt", "shard-2.txt"]
    assert result.best_checkpoints[0][1] == {"rank": 0}


def test_ranks_that_write_one_name_differently_keep_the_lowest_ranks_and_are_told(fit, caplog):
    def function():
        directory = train.staging_directory()
        (directory / "model.txt").write_text(str(train.get_context().get_world_rank()))
        train.report({}, checkpoint=Checkpoint.from_directory(directory))

    result = fit(function)
    assert Path(result.checkpoint.path, "model.txt").read_text() == "0"
    assert "ranks wrote different contents to model.txt" in caplog.text


def test_rank_0s_metrics_go_with_a_checkpoint_that_another_rank_gives(fit):
    def function():
        rank = train.get_context().get_world_rank()
        train.report({"rank": rank}, checkpoint=Checkpoint.from_dict({"by": rank}) if rank == 1 else None)

    (checkpoint, metrics), *_ = fit(function).best_checkpoints
    assert metrics == {"rank": 0}
    assert checkpoint.to_dict() == {"by": 1}


def test_only_the_best_are_kept_and_always_the_newest(fit):
    scores = [0.3, 0.9, float("nan"), 0.8, 0.1]

    def function():
        for score in scores:
            train.report({"eval": {"acc": score}}, checkpoint=Checkpoint.from_dict({"score": score}))

    keep = CheckpointConfig(num_to_keep=2, checkpoint_score_attribute="eval/acc")
    result = fit(function, checkpoint_config=keep)
    assert names(result) == ["checkpoint_000002", "checkpoint_000004", "checkpoint_000005"]
    assert [metrics["eval"]["acc"] for _, metrics in result.best_checkpoints] == [0.1, 0.8, 0.9]
    assert result.get_best_checkpoint("eval/acc", "max").to_dict() == {"score": 0.9}
    assert result.get_best_checkpoint("eval/acc", "min").to_dict() == {"score": 0.1}
    with pytest.raises(RuntimeError, match="Invalid metric name 'nope': the checkpoints have eval/acc"):
        result.get_best_checkpoint("nope", "max")
    with pytest.raises(ValueError, match="mode="):
        result.get_best_checkpoint("eval/acc", "best")


def test_a_missing_score_ranks_last_in_both_orders(fit):
    def function():
        train.report({}, checkpoint=Checkpoint.from_dict({"i": 0}))
        train.report({"loss": 2.0}, checkpoint=Checkpoint.from_dict({"i": 1}))
        train.report({"loss": 1.0}, checkpoint=Checkpoint.from_dict({"i": 2}))

    for order in ("max", "min"):
        keep = CheckpointConfig(checkpoint_score_attribute="loss", checkpoint_score_order=order)
        result = fit(function, name=order, checkpoint_config=keep)
        assert "loss" not in result.best_checkpoints[0][1]


def test_the_name_of_a_checkpoint_may_be_chosen_and_chosen_again(fit):
    def function():
        for i in range(3):
            train.report({"i": i}, checkpoint=Checkpoint.from_dict({"i": i}), checkpoint_dir_name="checkpoint_last")

    result = fit(function)
    assert names(result) == ["checkpoint_last"]
    assert result.checkpoint.to_dict() == {"i": 2}
    assert len(result.best_checkpoints) == 1


def test_no_upload_commits_files_where_they_lie(fit):
    def function():
        path = Path(train.get_context().get_storage().build_checkpoint_path_from_name("checkpoint_mine"))
        path.mkdir(exist_ok=True)
        (path / f"shard-{train.get_context().get_world_rank()}").write_text("data")
        train.collective.barrier()
        train.report(
            {}, checkpoint=Checkpoint.from_directory(path), checkpoint_upload_mode=CheckpointUploadMode.NO_UPLOAD
        )
        assert train.get_checkpoint().path == str(path)

    result = fit(function)
    assert names(result) == ["checkpoint_mine"]
    assert Path(result.checkpoint.path, "shard-1").read_text() == "data"


def test_an_upload_function_of_the_users_puts_the_files_itself(fit):
    def upload(checkpoint, name):
        path = Path(train.get_context().get_storage().build_checkpoint_path_from_name(name))
        return Checkpoint.from_directory(checkpoint.to_directory(path))

    def function():
        checkpoint = Checkpoint.from_dict({"x": 1}) if train.get_context().get_world_rank() == 0 else None
        train.report({}, checkpoint=checkpoint, checkpoint_upload_fn=upload)

    assert fit(function).checkpoint.to_dict() == {"x": 1}


def test_a_checkpoint_elsewhere_is_refused_with_no_upload(fit, tmp_path):
    def function():
        train.report(
            {}, checkpoint=Checkpoint.from_directory(tmp_path), checkpoint_upload_mode=CheckpointUploadMode.NO_UPLOAD
        )

    with pytest.raises(WorkerGroupError, match="is not a directory right below the run's own"):
        fit(function, 1)


def test_async_with_a_directory_takes_it_over_and_removes_it(fit, tmp_path):
    def function():
        import tempfile

        directory = Path(tempfile.mkdtemp(dir=tmp_path))
        (directory / "x").write_text("1")
        train.report(
            {}, checkpoint=Checkpoint.from_directory(directory), checkpoint_upload_mode=CheckpointUploadMode.ASYNC
        )
        train.get_all_reported_checkpoints()
        return directory.exists()

    result = fit(function, 1)
    assert result.return_value is False
    assert Path(result.checkpoint.path, "x").read_text() == "1"


def test_what_cannot_be_stored_without_pickle_is_refused_with_its_path(fit):
    def function():
        train.report({}, checkpoint=Checkpoint.from_dict({"model": {"hook": print}}))

    with pytest.raises(WorkerGroupError, match=r"state\['model'\]\['hook'\]"):
        fit(function, 1)


def test_a_bit_flipped_in_the_newest_checkpoint_falls_back_to_the_one_before(fit, capsys):
    def function():
        last = train.get_checkpoint()
        start = last.to_dict()["i"] + 1 if last else 0
        for i in range(start, 4):
            train.report({"i": i, "start": start}, checkpoint=Checkpoint.from_dict({"i": i, "w": np.zeros(100)}))
            if i == 2 and start == 0:
                os._exit(1)

    with pytest.raises(WorkerGroupError) as caught:
        fit(function, 1)
    newest = Path(caught.value.result.checkpoint.path)
    assert newest.name == "checkpoint_000003"
    data = bytearray((newest / "state.bin").read_bytes())
    data[50] ^= 1
    (newest / "state.bin").write_bytes(data)
    result = fit(function, 1)
    assert result.metrics == {"i": 3, "start": 2}
    assert "cannot be trusted and is passed over" in capsys.readouterr().err
    assert (Path(result.path) / ".broken" / "checkpoint_000003").exists()
    assert result.metrics_dataframe["i"].tolist() == [0, 1, 2, 3]


def test_notes_on_a_committed_checkpoint_do_not_break_its_check(fit):
    def function():
        if train.get_checkpoint() is None:
            train.report({}, checkpoint=Checkpoint.from_dict({"x": 1}))
            train.get_checkpoint().set_metadata({"note": "good"})
            os._exit(1)
        return train.get_checkpoint().get_metadata()

    assert fit(function, 1, failure_config=FailureConfig(1)).return_value == {"note": "good"}


@pytest.mark.parametrize("mode", [CheckpointUploadMode.SYNC, CheckpointUploadMode.ASYNC])
def test_notes_on_a_state_that_is_only_in_memory_go_with_it(mode, fit, tmp_path):
    def function():
        checkpoint = Checkpoint.from_dict({"x": 1})
        checkpoint.set_metadata({"note": "good"})
        checkpoint.update_metadata({"rank": train.get_context().get_world_rank()})
        train.report({}, checkpoint=checkpoint, checkpoint_upload_mode=mode)

    kept = fit(function, 2).checkpoint
    assert kept.get_metadata() == {"note": "good", "rank": 0}
    assert kept.to_dict() == {"x": 1}
    kept.verify()

    checkpoint = Checkpoint.from_dict({"x": 1})
    assert checkpoint.get_metadata() == {}
    checkpoint.set_metadata({"a": 1})
    assert Checkpoint(checkpoint.to_directory(tmp_path / "copy")).get_metadata() == {"a": 1}
    assert Checkpoint(checkpoint.path).get_metadata() == {"a": 1}
    checkpoint.set_metadata({"a": 2})
    assert Checkpoint(checkpoint.path).get_metadata() == checkpoint.get_metadata() == {"a": 2}


def test_metadata_is_json_and_survives_an_update(tmp_path):
    checkpoint = Checkpoint.from_directory(tmp_path)
    assert checkpoint.get_metadata() == {}
    checkpoint.set_metadata({"a": 1})
    checkpoint.update_metadata({"b": [2]})
    assert checkpoint.get_metadata() == {"a": 1, "b": [2]}
    with pytest.raises(TypeError):
        checkpoint.set_metadata({"a": object()})
    assert checkpoint.get_metadata() == {"a": 1, "b": [2]}


def test_a_checkpoint_is_not_a_path(tmp_path):
    with pytest.raises(TypeError, match="as_directory"):
        os.fspath(Checkpoint(tmp_path))
    assert repr(Checkpoint(tmp_path)) == f"Checkpoint(filesystem=local, path={tmp_path})"


def test_a_checkpoint_on_another_filesystem_comes_as_a_local_directory(tmp_path):
    from pyarrow.fs import LocalFileSystem, SubTreeFileSystem

    (tmp_path / "bucket" / "c").mkdir(parents=True)
    (tmp_path / "bucket" / "c" / "x").write_text("remote")
    checkpoint = Checkpoint("c", SubTreeFileSystem(str(tmp_path / "bucket"), LocalFileSystem()))
    with checkpoint.as_directory() as directory:
        assert Path(directory, "x").read_text() == "remote"
    assert not Path(directory).exists()


def test_a_run_may_begin_from_a_checkpoint_of_another(fit, tmp_path):
    first = fit(lambda: train.report({}, checkpoint=Checkpoint.from_dict({"i": 7})), 1, name="first")

    def function():
        return train.get_checkpoint().to_dict()["i"]

    result = DataParallelTrainer(
        function,
        run_config=RunConfig(name="second", storage_path=tmp_path),
        resume_from_checkpoint=first.checkpoint,
    ).fit()
    assert result.return_value == 7


def test_no_upload_to_a_committed_checkpoint_is_refused(fit):
    def function():
        path = Path(train.get_context().get_storage().build_checkpoint_path_from_name("mine"))
        for i in range(2):
            path.mkdir(exist_ok=True)
            (path / "x").write_text(str(i))
            checkpoint = Checkpoint.from_directory(path)
            train.report({}, checkpoint=checkpoint, checkpoint_upload_mode=CheckpointUploadMode.NO_UPLOAD)

    with pytest.raises(WorkerGroupError, match="is a committed checkpoint already"):
        fit(function, 1)


def test_verify_names_the_file_that_was_altered(fit):
    result = fit(lambda: train.report({}, checkpoint=Checkpoint.from_dict({"w": np.zeros(10)})), 1)
    result.checkpoint.verify()
    with open(Path(result.checkpoint.path, "state.bin"), "r+b") as file:
        file.write(b"\x01")
    with pytest.raises(train.CheckpointCorruptError, match=r"state\.bin does not hash to what was written"):
        result.checkpoint.verify()


def test_an_async_checkpoint_that_cannot_be_committed_is_raised_at_the_latest_when_the_function_ends(fit, tmp_path):
    def function():
        root = Path(train.get_context().get_storage().experiment_fs_path)
        (root / "checkpoint_000001").write_text("a file stands in the way")
        (root / ".trash").write_text("and nothing can be moved aside")
        train.report({}, checkpoint=Checkpoint.from_dict({}), checkpoint_upload_mode=CheckpointUploadMode.ASYNC)

    with pytest.raises(WorkerGroupError, match="report 1: the checkpoint could not be committed"):
        fit(function, 1)
