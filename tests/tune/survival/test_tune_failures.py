"""Trials that fail, and those who advise a search and raise: what becomes of the rest."""

import logging
import math
import os
import signal
import time
from datetime import timedelta

import pytest
from searching import told

from paceline import tune
from paceline.train import WorkerGroupError
from paceline.tune.schedulers import ASHAScheduler
from paceline.tune.search import BasicVariantGenerator


def steps_of(num=3, do=None):
    """A trial that goes on from its checkpoint. Before each step of the one whose x is 1, something is done."""

    def trial(config):
        last = tune.get_checkpoint()
        start = last.to_dict()["step"] if last else 0
        for step in range(start + 1, num + 1):
            if config["x"] == 1 and do is not None:
                do(config, step)
            saved = tune.Checkpoint.from_dict({"step": step})
            tune.report({"loss": config["x"] + step, "step": step, "start": start}, checkpoint=saved)

    return trial


def fails(config, step):
    if step == 2:
        raise ValueError("as planned")


def fails_twice(config, step):
    """Not at the same step: what fails twice in the same way is not tried again."""
    with open(config["log"], "a+") as log:
        log.seek(0)
        if step == len(log.read()) + 2 <= 3:
            log.write("x")
            raise ValueError("not yet")


def is_killed(config, step):
    if step == 3 and not os.path.exists(config["log"]):
        with open(config["log"], "w"):
            os.kill(os.getpid(), signal.SIGKILL)


def tuner_of(tmp_path, function, num=3, name="search", run=None, **about):
    about = {"metric": "loss", "mode": "min", "max_concurrent_trials": 2, **about}
    return tune.Tuner(
        function,
        param_space={"x": tune.grid_search(list(range(num))), "log": str(tmp_path / "log")},
        tune_config=tune.TuneConfig(**about),
        run_config=tune.RunConfig(name=name, storage_path=str(tmp_path), **(run or {})),
    )


def statuses(grid):
    return [result.status for result in grid]


def test_a_trial_that_fails_does_not_fail_the_search(tmp_path):
    grid = tuner_of(tmp_path, steps_of(3, fails)).fit()
    assert statuses(grid) == ["TERMINATED", "ERROR", "TERMINATED"]
    assert [result.metrics["step"] for result in grid] == [3, 1, 3]
    (error,) = grid.errors
    assert isinstance(error, WorkerGroupError)
    assert isinstance(error.__cause__, ValueError)
    assert grid[1].why == "ValueError: as planned"
    read = tune.ResultGrid.from_path(tmp_path / "search")
    assert "ValueError: as planned" in str(read.errors[0])


@pytest.mark.parametrize("do", [fails_twice, is_killed], ids=["raises", "SIGKILL"])
def test_a_trial_is_tried_again_from_its_checkpoint(tmp_path, do):
    run = {"failure_config": tune.FailureConfig(max_failures=2)}
    grid = tuner_of(tmp_path, steps_of(3, do), run=run).fit()
    assert statuses(grid) == ["TERMINATED"] * 3
    rows = grid[1].metrics_dataframe
    assert rows["step"].tolist() == rows["training_iteration"].tolist() == [1, 2, 3]
    starts = {fails_twice: [0, 1, 2], is_killed: [0, 0, 2]}[do]
    assert rows["start"].tolist() == starts, "it went on after what was committed"


@pytest.mark.parametrize("fail_fast", [True, "raise"])
def test_with_fail_fast_the_first_failure_ends_the_search_which_can_be_continued(tmp_path, fail_fast):
    run = {"failure_config": tune.FailureConfig(fail_fast=fail_fast)}
    tuner = tuner_of(tmp_path, steps_of(3, fails), num=5, run=run, max_concurrent_trials=1)
    if fail_fast == "raise":
        with pytest.raises(WorkerGroupError, match="as planned"):
            tuner.fit()
        grid = tuner.get_results()
    else:
        grid = tuner.fit()
    assert statuses(grid) == ["TERMINATED", "ERROR"]
    search = told(tmp_path / "search")
    assert (search.is_complete, search.why) == (False, "trial 00001 failed, and FailureConfig says fail_fast")

    grid = tuner_of(tmp_path, steps_of(3), num=5, run=run).fit()
    assert statuses(grid) == ["TERMINATED", "ERROR", *["TERMINATED"] * 3]


class Raising:
    """Of whatever is asked of it, one thing is too much. It counts only in the process that it is in."""

    too_much = ""

    def __getattribute__(self, name):
        if name == type(self).too_much:
            raise ZeroDivisionError("too much")
        return super().__getattribute__(name)


class RaisingScheduler(Raising, tune.TrialScheduler):
    pass


class RaisingSearcher(Raising, BasicVariantGenerator):
    pass


class RaisingStopper(Raising, tune.Stopper):
    def __call__(self, trial_id, result):
        if self.too_much == "__call__" and trial_id == "00001":
            raise ZeroDivisionError("too much")
        return False


ADVISERS = [
    (RaisingScheduler, "on_trial_result"),
    (RaisingScheduler, "choose"),
    (RaisingSearcher, "suggest"),
    (RaisingSearcher, "on_trial_complete"),
    (RaisingStopper, "__call__"),
    *(
        pytest.param(kind, method, marks=pytest.mark.chaos)
        for kind, method in (
            (RaisingScheduler, "on_trial_add"),
            (RaisingScheduler, "on_trial_complete"),
            (RaisingSearcher, "on_trial_result"),
            (RaisingStopper, "stop_all"),
        )
    ),
]


@pytest.mark.parametrize(("kind", "method"), ADVISERS, ids=lambda value: getattr(value, "__name__", value))
def test_an_adviser_that_raises_is_named_and_the_search_can_be_continued(tmp_path, monkeypatch, kind, method):
    def tuner():
        given = {
            "scheduler": {"scheduler": kind()} if issubclass(kind, tune.TrialScheduler) else {},
            "searcher": {"search_alg": kind()} if issubclass(kind, tune.Searcher) else {},
        }
        run = {"stop": kind()} if issubclass(kind, tune.Stopper) else {}
        return tuner_of(tmp_path, steps_of(2), num=2, run=run, **given["scheduler"], **given["searcher"])

    monkeypatch.setattr(kind, "too_much", method)
    words = f"{kind.__name__} raised ZeroDivisionError: too much when it was asked.*{method}"
    with pytest.raises(tune.TuneError, match=words) as raised:
        tuner().fit()
    assert isinstance(raised.value.__cause__, ZeroDivisionError)
    monkeypatch.setattr(kind, "too_much", "")
    grid = tuner().fit()
    assert statuses(grid) == ["TERMINATED"] * 2
    assert [result.metrics_dataframe["step"].tolist() for result in grid] == [[1, 2]] * 2


def test_a_function_that_stops_and_raises_is_named(tmp_path):
    def too_strict(trial_id, result):
        raise KeyError("accuracy")

    with pytest.raises(tune.TuneError, match=r"the stopper too_strict raised KeyError: 'accuracy' .* about trial 0000"):
        tuner_of(tmp_path, steps_of(2), run={"stop": too_strict}).fit()


def test_a_scheduler_that_answers_nonsense_is_named(tmp_path):
    class Vague(tune.TrialScheduler):
        def on_trial_result(self, trial, result):
            return "PERHAPS"

    with pytest.raises(
        tune.TuneError, match=r"Vague.on_trial_result returned 'PERHAPS': it is CONTINUE, PAUSE or STOP"
    ):
        tuner_of(tmp_path, steps_of(2), num=1, scheduler=Vague()).fit()


def test_a_callback_that_raises_is_dropped_by_name_and_the_search_goes_on(tmp_path, caplog):
    class Broken(tune.Callback):
        def on_trial_result(self, **about):
            raise RuntimeError("no")

    with caplog.at_level(logging.ERROR, "paceline"):
        grid = tuner_of(tmp_path, steps_of(2), num=2, run={"callbacks": [Broken()]}).fit()
    assert statuses(grid) == ["TERMINATED"] * 2
    assert "Broken raised and is dropped" in caplog.text


def test_a_metric_that_is_never_reported_is_told_where_somebody_needs_it(tmp_path):
    def other(config):
        tune.report({"accuracy": 1.0})

    with pytest.raises(ValueError, match=r"without ever reporting 'loss', .* it reported accuracy"):
        tuner_of(tmp_path, other, scheduler=ASHAScheduler()).fit()
    grid = tuner_of(tmp_path, other, name="nobody_asks", metric=None, mode=None).fit()
    assert statuses(grid) == ["TERMINATED"] * 3


def test_trials_without_reports_and_with_nan_are_over_like_others(tmp_path):
    def odd(config):
        if config["x"] == 1:
            return
        tune.report({"loss": math.nan if config["x"] == 2 else 5.0})

    grid = tuner_of(tmp_path, odd, scheduler=ASHAScheduler(grace_period=1, max_t=3)).fit()
    assert statuses(grid) == ["TERMINATED"] * 3
    assert grid[1].metrics is None or "loss" not in grid[1].metrics
    assert math.isnan(grid[2].metrics["loss"])
    assert grid.get_best_result().config["x"] == 0
    assert told(tmp_path / "search").best.value == 5.0
    assert len(tuner_of(tmp_path, odd, scheduler=ASHAScheduler(grace_period=1, max_t=3)).fit()) == 3, "read again"


def endless(config):
    while True:
        time.sleep(0.01)
        tune.report({"loss": config["x"]})


@pytest.mark.parametrize(
    "budget",
    [pytest.param(0.4, id="seconds", marks=pytest.mark.chaos), pytest.param(timedelta(seconds=0.4), id="timedelta")],
)
def test_the_time_ends_trials_at_their_next_report_and_completes_the_search(tmp_path, budget):
    space = {"param_space": {"x": tune.uniform(0, 1)}}
    run_config = tune.RunConfig(name="search", storage_path=str(tmp_path))

    def tuner(num_samples=-1, budget=budget):
        config = tune.TuneConfig(num_samples=num_samples, time_budget_s=budget, max_concurrent_trials=2, seed=1)
        return tune.Tuner(endless, **space, tune_config=config, run_config=run_config)

    grid = tuner().fit()
    assert set(statuses(grid)) == {"TERMINATED"}
    assert {result.why for result in grid} == {"time_budget_s=0.4 is over"}
    search = told(tmp_path / "search")
    assert (search.is_complete, search.stopped_because) == (True, "time_budget_s=0.4 is over")
    size = (tmp_path / "search" / "journal.jsonl").stat().st_size
    assert len(tuner().fit()) == len(grid)
    assert (tmp_path / "search" / "journal.jsonl").stat().st_size == size, "nothing was run"

    more_s = search.ran_s + 0.4
    more = tuner(budget=more_s).fit()
    assert len(more) > len(grid), "with more time there are more trials"
    assert [result.metrics["loss"] for result in more[: len(grid)]] == [result.metrics["loss"] for result in grid]

    lines = (tmp_path / "search" / "journal.jsonl").read_bytes().splitlines(keepends=True)
    over = max(number for number, line in enumerate(lines) if b'"NoMoreTrials"' in line)
    (tmp_path / "search" / "journal.jsonl").write_bytes(b"".join(lines[: over + 1]))
    assert len(tuner(budget=more_s).fit()) == len(more), "a driver that finds the time over makes no trial"
    assert told(tmp_path / "search").is_complete


def test_a_stopper_may_end_the_whole_search(tmp_path):
    class Enough(tune.Stopper):
        num = 0

        def __call__(self, trial_id, result):
            self.num += 1
            return False

        def stop_all(self):
            return self.num >= 5

    grid = tuner_of(tmp_path, endless, num=4, run={"stop": Enough()}).fit()
    assert statuses(grid) == ["TERMINATED"] * 2
    assert {result.why for result in grid} == {"Enough"}
    search = told(tmp_path / "search")
    assert search.is_complete
    assert 5 <= sum(trial.iteration for trial in search.trials.values()) <= 6
    assert len(tuner_of(tmp_path, endless, num=4, run={"stop": Enough()}).fit()) == 2, "it stays ended"
