"""What a search has come to: scopes, tables, errors, and what is read when."""

import math
import shutil

import pytest
from hypothesis import given
from hypothesis import strategies as st
from told_search import Told

from paceline._storage.home import Home
from paceline.train import Result as RunResult
from paceline.tune import scopes
from paceline.tune.result_grid import ResultGrid

NAN, INF = math.nan, math.inf


@pytest.fixture
def grid(tmp_path):
    """Makes the grid of trials by the losses that each of them reported."""

    def make(*trials, **search):
        told = Told(**search)
        told.starts()
        for number, losses in enumerate(trials):
            told.trial(f"{number:05d}", *losses)
        told.search_ended()
        return ResultGrid(told.search, Home.of_path(str(told.written_to(tmp_path / "search"))))

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


@given(
    st.lists(st.floats(allow_nan=False, allow_infinity=False, width=32), min_size=1, max_size=30),
    st.sampled_from(scopes.SCOPES),
    st.sampled_from(scopes.MODES),
)
def test_a_score_lies_between_the_values_it_is_made_of(values, scope, mode):
    found = scopes.score(values, scope, mode, only_finite=True)
    assert found is not None
    slack = 1e-9 * max(map(abs, values))
    assert min(values) - slack <= found <= max(values) + slack
    if scope == "all":
        assert found == (max(values) if mode == "max" else min(values))


@given(st.lists(st.floats(), min_size=1), st.sampled_from(scopes.MODES))
def test_nan_is_the_best_only_where_there_is_nothing_else(values, mode):
    best = scopes.best(enumerate(values), mode)
    assert best is not None
    numbers = [value for value in values if not math.isnan(value)]
    if numbers:
        assert best[1] == (max(numbers) if mode == "max" else min(numbers))
        assert best[0] == values.index(best[1])
    else:
        assert best[0] == 0


def test_metric_and_mode_are_those_of_the_search_unless_given(grid):
    results = grid([1.0], [2.0])
    assert results.get_best_result().trial_id == "00000"
    assert results.get_best_result(mode="max").trial_id == "00001"
    assert results.get_best_result(metric="config/lr", mode="max").trial_id == "00001"


def test_of_equals_the_first_is_the_best(grid):
    assert grid([2.0], [1.0], [1.0]).get_best_result().trial_id == "00001"


def test_nan_and_infinities_are_passed_over_unless_asked_for(grid):
    results = grid([NAN], [-INF], [3.0, NAN, 2.0], [1.0, NAN])
    assert results.get_best_result().trial_id == "00002"
    assert results.get_best_result(scope="all").trial_id == "00003"
    assert results.get_best_result(filter_nan_and_inf=False).trial_id == "00001"
    assert results.get_best_result(mode="max", filter_nan_and_inf=False).trial_id == "00002"
    with pytest.raises(RuntimeError, match=r"scope='avg': all are nan or infinite.*\n\nhint: filter_nan_and_inf=False"):
        grid([NAN, 1.0]).get_best_result(scope="avg")


def test_the_last_value_counts_also_where_a_later_report_has_none(tmp_path):
    told = Told()
    told.starts()
    told.trial("00000", 1.0, ending=None)
    told.reported("00000", note="done")
    told.trial("00001", 2.0)
    results = ResultGrid(told.search, Home.of_path(str(told.written_to(tmp_path / "search"))))
    assert results.get_best_result().trial_id == "00000"


@pytest.mark.parametrize(
    ("asked", "error", "told"),
    [
        ({"metric": "losss"}, RuntimeError, "no trial has reported 'losss'; reported were loss$"),
        ({"mode": "least"}, ValueError, "mode='least' is neither 'min' nor 'max'"),
        ({"scope": "first"}, ValueError, "scope='first' is not one of all, last, avg, last-5-avg, last-10-avg"),
        ({"metric": "trial_id"}, RuntimeError, "'trial_id' is not a number .*'00000' was reported"),
    ],
)
def test_what_cannot_be_compared_is_refused_by_name(grid, asked, error, told):
    with pytest.raises(error, match=told):
        grid([1.0], [2.0]).get_best_result(**asked)


def test_without_a_metric_the_error_says_where_to_give_it_and_which_there_are(grid):
    results = grid([1.0], [2.0], metric=None, mode=None)
    with pytest.raises(ValueError, match=r"no metric is given.*TuneConfig\n\nhint:.*reported were loss"):
        results.get_best_result()
    with pytest.raises(ValueError, match="no mode is given for 'loss'"):
        results.get_best_result("loss")
    assert results.get_best_result("loss", "min").metrics["loss"] == 1.0


def test_one_trial_needs_no_metric_to_be_the_best(grid):
    assert grid([1.0], metric=None, mode=None).get_best_result().trial_id == "00000"


def test_where_nobody_reported_the_error_says_how_many_failed(tmp_path):
    told = Told()
    told.starts()
    told.trial("00000", ending="failed", why="ValueError: boom")
    told.trial("00001", ending="failed", why="ValueError: boom")
    results = ResultGrid(told.search, Home.of_path(str(told.written_to(tmp_path / "search"))))
    with pytest.raises(RuntimeError, match=r"no trial has reported anything \(2 failed, see results.errors\)"):
        results.get_best_result()
    with pytest.raises(RuntimeError, match="no trial was run"):
        ResultGrid(Told().search, Home.of_path(str(tmp_path))).get_best_result("loss", "min")


def test_results_are_counted_indexed_sliced_and_iterated(grid):
    results = grid([1.0], [2.0], [3.0])
    assert (len(results), results.num_terminated, results.num_errors) == (3, 3, 0)
    assert [result.trial_id for result in results] == ["00000", "00001", "00002"]
    assert results[-1].trial_id == "00002"
    assert [result.trial_id for result in results[:2]] == ["00000", "00001"]
    assert results[0] is results[0]
    assert isinstance(results[0], RunResult)
    with pytest.raises(IndexError, match="there is no result 3: the search has 3 trials"):
        results[3]


def test_metrics_have_what_the_trial_reported_first_and_then_what_is_added(grid):
    result = grid([1.0, 0.5])[0]
    assert next(iter(result.metrics)) == "loss"
    assert result.metrics == {
        "loss": 0.5,
        "training_iteration": 2,
        "time_total_s": 2.0,
        "time_this_iter_s": 1.0,
        "timestamp": 1005,
        "trial_id": "00000",
        "done": True,
        "config": {"lr": 0.0},
    }
    assert (result.config, result.status, result.why) == ({"lr": 0.0}, "TERMINATED", "")


def test_a_table_has_one_row_for_each_trial(tmp_path):
    told = Told()
    told.starts()
    for trial, kind in (("00000", "returned"), ("00001", "failed")):
        told.made(trial, lr=0.1, model={"layers": 2})
        told.began(trial)
        told.reported(trial, eval={"loss": 2.0}, epoch=1)
        told.reported(trial, eval={"loss": 3.0}, epoch=2)
        told.ended(trial, kind, why="ValueError: boom" if kind == "failed" else "")
    told.made("00002", lr=0.3)
    results = ResultGrid(told.search, Home.of_path(str(told.written_to(tmp_path / "search"))))
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


def test_a_table_by_an_unknown_metric_is_refused(grid):
    results = grid([1.0])
    with pytest.raises(RuntimeError, match="no trial has reported 'acc'; reported were loss"):
        results.get_dataframe("acc", "max")
    with pytest.raises(ValueError, match="filter_mode='max' is given without filter_metric"):
        results.get_dataframe(filter_mode="max")
    with pytest.raises(ValueError, match="filter_mode='most' is neither"):
        results.get_dataframe("loss", "most")


def test_lives_of_a_cloned_trial_are_joined_and_its_iterations_go_on(tmp_path):
    told = Told()
    told.starts()
    told.trial("00000", 9.0, 8.0, ending=None)
    told.trial("00001", 3.0, 2.0, ending=None)
    told.reported("00001", loss=1.0, checkpoint=True)
    told.ended("00000", "interrupted")
    told.cloned("00000", "00001", lr=0.5)
    told.began("00000")
    told.reported("00000", loss=0.5)
    results = ResultGrid(told.search, Home.of_path(str(told.written_to(tmp_path / "search"))))
    result = results[0]
    frame = result.metrics_dataframe
    assert list(frame["loss"]) == [9.0, 8.0, 0.5]
    assert list(frame["training_iteration"]) == [1, 2, 4]
    assert list(frame["config/lr"]) == [0.0, 0.0, 0.5]
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


def test_a_directory_without_a_search_is_refused(tmp_path):
    with pytest.raises(RuntimeError, match="nowhere does not exist"):
        ResultGrid.from_path(tmp_path / "nowhere")
    with pytest.raises(RuntimeError, match="has no journal of a search"):
        ResultGrid.from_path(tmp_path)


def test_nothing_is_read_before_it_is_asked_for(grid, tmp_path):
    results = grid(*([float(n), 0.0] for n in range(1000)))
    shutil.rmtree(tmp_path / "search")
    # Whatever would look there now finds nothing.
    assert len(results) == 1000
    assert sum(result.metrics["loss"] for result in results) == 0.0
    assert results.get_best_result().trial_id == "00000"
    assert len(results.get_dataframe()) == 1000
    assert results[7].metrics_dataframe is None


def test_a_report_that_the_journal_tells_twice_is_one(tmp_path):
    told = Told()
    told.starts()
    told.trial("00000", 4.0, ending=None)
    told.happens(told.events[-1])
    told.reported("00000", loss=1.0)
    results = ResultGrid(told.search, Home.of_path(str(told.written_to(tmp_path / "search"))))
    assert list(results[0].metrics_dataframe["loss"]) == [4.0, 1.0]


def test_neither_results_nor_lines_load_what_they_do_not_need(run_script):
    script = """
import sys
import paceline.tune.result_grid, paceline.tune.terminal, paceline.tune.drive.callbacks
from paceline import tune
assert tune.ResultGrid and tune.Callback and tune.Result
print(sorted({"rich", "pandas", "numpy", "pyarrow", "matplotlib", "optuna", "torch"} & set(sys.modules)))
"""
    assert run_script(script).stdout == "[]\n"
