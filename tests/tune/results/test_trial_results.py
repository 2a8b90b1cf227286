"""What is read from the directories of trials: checkpoints, errors, what ranks reported. The runs are real ones."""

import shutil

import pytest
from told_search import Told

from paceline import train
from paceline._storage.home import Home
from paceline.train import CheckpointConfig, DataParallelTrainer, RunConfig
from paceline.tune.result_grid import ResultGrid


def train_func(config):
    for step in range(config["steps"]):
        loss = config["loss"] / (step + 1)
        train.report({"loss": loss}, checkpoint=train.Checkpoint.from_dict({"loss": loss}))
    if config.get("fails"):
        raise ValueError("boom")
    return {"steps": config["steps"]}


def run(directory, name, initial=None, **config):
    """A trial's run, as a search has it played."""
    trainer = DataParallelTrainer(
        train_func,
        train_loop_config=config,
        run_config=RunConfig(
            name=name,
            storage_path=directory,
            checkpoint_config=CheckpointConfig(
                num_to_keep=2, checkpoint_score_attribute="loss", checkpoint_score_order="max"
            ),
        ),
        resume_from_checkpoint=initial,
    )
    return trainer.fit()


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """A search of three trials, of which the second failed and the third was cloned from the first."""
    directory = tmp_path_factory.mktemp("searches") / "search"
    told = Told()
    told.starts()
    run(directory, "trial_00000", steps=3, loss=6.0)
    told.trial("00000", 6.0, 3.0, ending=None, config={"steps": 3, "loss": 6.0})
    told.reported("00000", loss=2.0, checkpoint=True)
    told.ended("00000")
    with pytest.raises(train.TrainingFailedError) as failed:
        run(directory, "trial_00001", steps=1, loss=9.0, fails=True)
    told.trial("00001", 9.0, ending="failed", why=str(failed.value), config={"steps": 1, "loss": 9.0, "fails": True})
    run(directory, "trial_00002", steps=1, loss=8.0)
    told.trial("00002", ending=None, config={"steps": 1, "loss": 8.0})
    told.reported("00002", loss=8.0, checkpoint=True)
    told.ended("00002", "interrupted")
    told.cloned("00002", "00000", steps=0, loss=1.0)
    return told, told.written_to(directory), failed.value


def test_a_trial_has_its_checkpoints_its_directory_and_what_it_returned(written):
    told, directory, _ = written
    result = ResultGrid(told.search, Home.of_path(str(directory)))[0]
    assert result.path == str(directory / "trial_00000")
    assert result.checkpoint.path == str(directory / "trial_00000" / "checkpoint_000003")
    assert result.checkpoint.to_dict() == {"loss": 2.0}
    # The best two by their loss, and the newest.
    assert [metrics["loss"] for _, metrics in result.best_checkpoints] == [2.0, 3.0, 6.0]
    assert result.get_best_checkpoint("loss", "min").to_dict() == {"loss": 2.0}
    assert result.return_value == {"steps": 3}
    assert result.error is None
    assert (result.log_dir / "attempt_1" / "rank_0.log").exists()
    assert [own["loss"] for own in result.metrics_by_rank] == [2.0]
    assert result.filesystem.type_name == "local"
    assert "trial_id='00000'" in repr(result)


def test_the_error_of_a_trial_is_the_exception_itself_where_it_was_met_here(written):
    told, directory, error = written
    results = ResultGrid(told.search, Home.of_path(str(directory)), {"00001": error})
    assert results.errors == [error]
    assert results[1].error is error
    assert (results.num_errors, results.num_terminated) == (1, 1)


def test_the_error_of_a_trial_is_told_by_its_journal_where_another_process_met_it(written):
    _, directory, error = written
    found = ResultGrid.from_path(directory)[1].error
    assert type(found) is type(error)
    assert str(found) == str(error)
    assert "boom" in str(found.worker_failures[0])


def test_the_error_of_a_trial_without_a_run_says_why(tmp_path):
    told = Told()
    told.starts()
    told.trial("00000", ending="failed", why="it needs 4 GPUs, and there are 0")
    (error,) = ResultGrid(told.search, Home.of_path(str(told.written_to(tmp_path / "search")))).errors
    assert str(error) == "it needs 4 GPUs, and there are 0"


def test_a_clone_has_the_checkpoint_of_its_donor_until_it_has_its_own(written):
    _, directory, _ = written
    result = ResultGrid.from_path(directory)[2]
    assert result.checkpoint.path == str(directory / "trial_00000" / "checkpoint_000003")
    assert [metrics["loss"] for _, metrics in result.best_checkpoints] == [8.0]
    assert (result.status, result.return_value) == ("PENDING", None)


def test_checkpoints_are_found_where_a_search_was_copied_to(written, tmp_path):
    _, directory, _ = written
    shutil.copytree(directory, tmp_path / "copied")
    results = ResultGrid.from_path(tmp_path / "copied")
    assert results[0].checkpoint.path == str(tmp_path / "copied" / "trial_00000" / "checkpoint_000003")
    assert results[2].checkpoint.path == results[0].checkpoint.path


def test_a_trial_that_has_not_begun_has_nothing(tmp_path):
    told = Told()
    told.starts()
    told.made("00000", lr=1)
    result = ResultGrid(told.search, Home.of_path(str(told.written_to(tmp_path / "search"))))[0]
    assert (result.metrics, result.checkpoint, result.error, result.best_checkpoints) == (None, None, None, [])
    assert (result.return_value, result.metrics_dataframe, result.metrics_by_rank) == (None, None, None)
