"""What a search has come to: scopes, tables, errors, and what is read of its trials' runs, which are real ones."""

import math
import shutil
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st
from recorded_search import RecordedSearch

from paceline import train
from paceline.train import CheckpointConfig, DataParallelTrainer, RunConfig
from paceline.train import Result as RunResult
from paceline.tune.result_grid import ResultGrid
from paceline.tune.results import scopes

NAN, INF = math.nan, math.inf


@pytest.fixture
def grid(tmp_path):
    """Makes the grid of trials by the losses that each of them reported."""

    def make(*trials, **search):
        recorded = RecordedSearch(**search).starts()
        for number, losses in enumerate(trials):
            recorded.trial(f"{number:05d}", *losses)
        recorded.search_ended()
        return recorded.results(tmp_path / "search")

    return make


TRIALS = (
    [9.0, 9, 9, 9, 9, 9, 1, 1, 1, 1, 1, 5.0],  # average 5.67, of the last ten 4.4, of the last five 1.8, best 1
    [4.0] * 12,
    [0.5, 20.0, 20, 20, 20, 20, 20, 20, 20, 20, 20, 3.0],  # best 0.5, last 3
    [9.0] * 2 + [2.0] * 10 + [6.0] * 5,  # of the last ten 4.0
    [7.0] * 12,
)


@pytest.mark.parametrize(
    ("scope", "lowest", "highest"),
    [("last", 2, 4), ("avg", 1, 2), ("last-5-avg", 0, 2), ("last-10-avg", 1, 2), ("all", 2, 2)],
)
def test_a_scope_says_which_value_of_a_trial_counts(grid, scope, lowest, highest):
    results = grid(*TRIALS)
    assert results.get_best_result("loss", "min", scope).trial_id == f"{lowest:05d}"
    assert results.get_best_result("loss", "max", scope).trial_id == f"{highest:05d}"


@given(st.lists(st.floats(), min_size=1), st.sampled_from(scopes.MODES))
def test_nan_is_the_best_only_where_there_is_nothing_else(values, mode):
    best = scopes.select_best(enumerate(values), mode)
    assert best is not None
    numbers = [value for value in values if not math.isnan(value)]
    if numbers:
        assert best[1] == (max(numbers) if mode == "max" else min(numbers))
        assert best[0] == values.index(best[1])
    else:
        assert best[0] == 0


def test_uses_the_searchs_metric_and_mode_and_skips_nan_and_infinity_by_default(grid):
    results = grid([1.0], [2.0])
    assert results.get_best_result().trial_id == "00000"
    assert results.get_best_result(mode="max").trial_id == "00001"
    assert results.get_best_result(metric="config/lr", mode="max").trial_id == "00001"
    results = grid([NAN], [-INF], [3.0, NAN, 2.0], [1.0, NAN])
    assert results.get_best_result().trial_id == "00002"
    assert results.get_best_result(scope="all").trial_id == "00003"
    assert results.get_best_result(filter_nan_and_inf=False).trial_id == "00001"
    assert results.get_best_result(mode="max", filter_nan_and_inf=False).trial_id == "00002"
    with pytest.raises(RuntimeError, match=r"no trial has a finite value of 'loss' in scope='avg'\n\nhint: filter_nan"):
        grid([NAN, 1.0]).get_best_result(scope="avg")


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"metric": "losss"}, RuntimeError, "no trial has reported 'losss'; the metrics are loss$"),
        ({"mode": "least"}, ValueError, "mode must be 'min' or 'max', got 'least'"),
        ({"scope": "1st"}, ValueError, "scope must be 'all', 'last', 'avg', 'last-5-avg' or 'last-10-avg', got '1st'"),
        ({"metric": "trial_id"}, RuntimeError, "'trial_id' must be a number, but a trial reported '00000'"),
    ],
)
def test_what_cannot_be_compared_is_refused_by_name(grid, arguments, error, message):
    with pytest.raises(error, match=message):
        grid([1.0], [2.0]).get_best_result(**arguments)


def test_without_a_metric_the_error_says_where_to_give_it_and_which_there_are(grid):
    results = grid([1.0], [2.0], metric=None, mode=None)
    with pytest.raises(ValueError, match=r"needs a metric: .*TuneConfig has none\n\nhint:.*the metrics are loss"):
        results.get_best_result()
    with pytest.raises(ValueError, match="needs a mode for 'loss'"):
        results.get_best_result("loss")
    assert results.get_best_result("loss", "min").metrics["loss"] == 1.0
    assert grid([1.0], metric=None, mode=None).get_best_result().trial_id == "00000", "one needs no metric"


def test_where_nobody_reported_the_error_says_how_many_failed_and_a_trial_that_has_not_begun_has_nothing(tmp_path):
    recorded = RecordedSearch().starts()
    recorded.trial("00000", ending="failed", why="ValueError: boom")
    recorded.trial("00001", ending="failed", why="ValueError: boom")
    results = recorded.results(tmp_path / "search")
    with pytest.raises(RuntimeError, match=r"no trial has reported anything \(2 failed, see results.errors\)"):
        results.get_best_result()
    with pytest.raises(RuntimeError, match="the search has no trials"):
        RecordedSearch().results(tmp_path / "none").get_best_result("loss", "min")
    with pytest.raises(RuntimeError, match="nowhere does not exist"):
        ResultGrid.from_path(tmp_path / "nowhere")
    with pytest.raises(RuntimeError, match="has no journal, or an empty one"):
        ResultGrid.from_path(tmp_path)
    recorded = RecordedSearch().starts()
    recorded.made("00000", lr=1)
    result = recorded.results(tmp_path / "search")[0]
    assert (result.metrics, result.checkpoint, result.error, result.best_checkpoints) == ({}, None, None, [])
    assert (result.return_value, result.metrics_dataframe, result.metrics_by_rank) == (None, None, None)


def test_results_are_counted_and_indexed_and_metrics_have_first_what_was_reported(grid):
    results = grid([1.0], [2.0], [3.0])
    assert (len(results), results.num_terminated, results.num_errors) == (3, 3, 0)
    assert [result.trial_id for result in results] == ["00000", "00001", "00002"]
    assert results[-1].trial_id == "00002"
    assert [result.trial_id for result in results[:2]] == ["00000", "00001"]
    assert results[0] is results[0]
    assert isinstance(results[0], RunResult)
    with pytest.raises(IndexError, match="no result 3: the search has 3 trials"):
        results[3]
    result = grid([1.0, 0.5])[0]
    assert next(iter(result.metrics)) == "loss"
    added = {"training_iteration": 2, "time_total_s": 2.0, "time_this_iter_s": 1.0, "timestamp": 1005}
    added |= {"time_since_restore": 2.0, "iterations_since_restore": 2}
    added["date"] = time.strftime("%Y-%m-%d_%H-%M-%S", time.localtime(1005))
    assert result.metrics == {"loss": 0.5, **added, "trial_id": "00000", "done": True, "config": {"lr": 0.0}}
    assert (result.config, result.status, result.why) == ({"lr": 0.0}, "TERMINATED", "")


def test_a_table_has_one_row_for_each_trial(tmp_path):
    recorded = RecordedSearch().starts()
    for trial, kind in (("00000", "returned"), ("00001", "failed")):
        recorded.made(trial, lr=0.1, model={"layers": 2})
        recorded.began(trial)
        recorded.reported(trial, eval={"loss": 2.0}, epoch=1)
        recorded.reported(trial, eval={"loss": 3.0}, epoch=2)
        recorded.ended(trial, kind, why="ValueError: boom" if kind == "failed" else "")
    recorded.made("00002", lr=0.3)
    results = recorded.results(tmp_path / "search")
    frame = results.get_dataframe()
    assert list(frame.columns)[:4] == ["eval/loss", "epoch", "training_iteration", "time_total_s"]
    assert list(frame.columns)[-4:] == ["config/lr", "config/model/layers", "why", "logdir"]
    assert list(frame["trial_id"]) == ["00000", "00001", "00002"]
    assert list(frame["status"]) == ["TERMINATED", "ERROR", "PENDING"]
    assert list(frame["eval/loss"])[:2] == [3.0, 3.0]
    assert math.isnan(frame["eval/loss"][2])
    assert list(frame["config/lr"]) == [0.1, 0.1, 0.3]
    assert frame["logdir"][1] == str(tmp_path / "search" / "trial_00001")
    best = results.get_dataframe(filter_metric="eval/loss", filter_mode="min")
    assert list(best["epoch"])[:2] == [1, 1]
    assert results.get_dataframe("epoch", "max")["epoch"][0] == 2
    with pytest.raises(RuntimeError, match="no trial has reported 'acc'; the metrics are eval/loss, epoch"):
        results.get_dataframe("acc", "max")
    with pytest.raises(ValueError, match="filter_mode='max' needs a filter_metric"):
        results.get_dataframe(filter_mode="max")
    with pytest.raises(ValueError, match="filter_mode must be 'min' or 'max', got 'most'"):
        results.get_dataframe("epoch", "most")


def test_joins_the_runs_of_a_cloned_trial_and_continues_its_iterations(tmp_path):
    recorded = RecordedSearch().starts()
    recorded.trial("00000", 9.0, 8.0, ending=None)
    recorded.record(recorded.events[-1])  # A report that the journal has twice is one.
    recorded.trial("00001", 3.0, 2.0, ending=None)
    recorded.reported("00001", loss=1.0, checkpoint=True)
    recorded.ended("00000", "interrupted")
    recorded.cloned("00000", "00001", lr=0.5)
    recorded.began("00000")
    recorded.reported("00000", loss=0.5)
    recorded.reported("00000", note="done")
    results = recorded.results(tmp_path / "search")
    result = results[0]
    frame = result.metrics_dataframe
    assert list(frame["loss"])[:3] == [9.0, 8.0, 0.5]
    assert list(frame["training_iteration"]) == [1, 2, 4, 5]
    assert list(frame["config/lr"]) == [0.0, 0.0, 0.5, 0.5]
    assert results.get_best_result().trial_id == "00000", "the last loss counts, though a later report has none"
    assert result.config == {"lr": 0.5}
    assert [saved.run for saved in result.lineage] == ["trial_00001"]
    assert result.path == str(tmp_path / "search" / "trial_00000-1")


def test_a_search_is_read_from_its_directory_also_where_it_was_copied_and_while_it_runs(grid, tmp_path):
    grid([3.0, 1.0], [2.0])
    before = tmp_path / "search"
    with (before / "journal.jsonl").open("ab") as file:
        file.write(b"00000000 a line that is being writt")
    shutil.copytree(before, tmp_path / "copied")
    shutil.rmtree(before)
    results = ResultGrid.from_path(tmp_path / "copied")
    assert results.experiment_path == str(tmp_path / "copied")
    assert results.filesystem.type_name == "local"
    assert list(results.get_best_result().metrics_dataframe["loss"]) == [3.0, 1.0]
    assert sorted(path.name for path in (tmp_path / "copied").iterdir()) == ["journal.jsonl"]


def test_reads_nothing_before_it_is_needed(grid, tmp_path):
    results = grid(*([float(n), 0.0] for n in range(1000)))
    shutil.rmtree(tmp_path / "search")
    # Whatever would look there now finds nothing.
    assert len(results) == 1000
    assert sum(result.metrics["loss"] for result in results) == 0.0
    assert results.get_best_result().trial_id == "00000"
    assert len(results.get_dataframe()) == 1000
    assert results[7].metrics_dataframe is None


def train_func(config):
    for step in range(config["steps"]):
        loss = config["loss"] / (step + 1)
        train.report({"loss": loss}, checkpoint=train.Checkpoint.from_dict({"loss": loss}))
    if config.get("fails"):
        raise ValueError("boom")
    return {"steps": config["steps"]}


def run(directory, name, **config):
    """A trial's run, as a search has it played."""
    best = CheckpointConfig(num_to_keep=2, checkpoint_score_attribute="loss", checkpoint_score_order="max")
    run_config = RunConfig(name=name, storage_path=directory, checkpoint_config=best)
    return DataParallelTrainer(train_func, train_loop_config=config, run_config=run_config).fit()


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """A search of three trials, of which the second failed and the third was cloned from the first."""
    directory = tmp_path_factory.mktemp("searches") / "search"
    recorded = RecordedSearch().starts()
    run(directory, "trial_00000", steps=3, loss=6.0)
    recorded.trial("00000", 6.0, 3.0, ending=None, config={"steps": 3, "loss": 6.0})
    recorded.reported("00000", loss=2.0, checkpoint=True)
    recorded.ended("00000")
    with pytest.raises(train.TrainingFailedError) as failed:
        run(directory, "trial_00001", steps=1, loss=9.0, fails=True)
    recorded.trial("00001", 9.0, ending="failed", why=str(failed.value), config={"steps": 1, "loss": 9, "fails": True})
    run(directory, "trial_00002", steps=1, loss=8.0)
    recorded.trial("00002", ending=None, config={"steps": 1, "loss": 8.0})
    recorded.reported("00002", loss=8.0, checkpoint=True)
    recorded.ended("00002", "interrupted")
    recorded.cloned("00002", "00000", steps=0, loss=1.0)
    return recorded, recorded.write_to(directory), failed.value


def test_a_trial_has_its_checkpoints_its_directory_and_what_it_returned(written):
    recorded, directory, _ = written
    result = recorded.results(directory)[0]
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


def test_the_error_of_a_trial_is_the_exception_itself_or_else_what_the_journals_say(written, tmp_path):
    recorded, directory, error = written
    results = recorded.results(directory, {"00001": error})
    assert results.errors == [error]
    assert results[1].error is error
    assert (results.num_errors, results.num_terminated) == (1, 1)
    found = ResultGrid.from_path(directory)[1].error
    assert type(found) is type(error)
    assert str(found) == str(error)
    assert "boom" in str(found.worker_failures[0])
    recorded = RecordedSearch().starts()
    recorded.trial("00000", ending="failed", why="it needs 4 GPUs, and there are 0")
    (without_a_run,) = recorded.results(tmp_path / "search").errors
    assert str(without_a_run) == "it needs 4 GPUs, and there are 0"


def test_a_clone_has_the_checkpoint_of_its_donor_until_it_has_its_own_also_in_a_copy(written, tmp_path):
    shutil.copytree(written[1], tmp_path / "copied")
    results = ResultGrid.from_path(tmp_path / "copied")
    assert results[0].checkpoint.path == str(tmp_path / "copied" / "trial_00000" / "checkpoint_000003")
    assert results[2].checkpoint.path == results[0].checkpoint.path
    assert [metrics["loss"] for _, metrics in results[2].best_checkpoints] == [8.0]
    assert (results[2].status, results[2].return_value) == ("PENDING", None)
