"""Trials that fail, and those who advise a search and raise: what becomes of the rest."""

import math
import os
import signal
import time
from datetime import timedelta

import pytest
from searching import fails, load_search, make_tuner, statuses, steps_of

from paceline import tune
from paceline._core.system import SystemClock
from paceline.train import WorkerGroupError
from paceline.train.driver.run_spec import RunEnvironment
from paceline.tune.schedulers import ASHAScheduler
from paceline.tune.search import BasicVariantGenerator


def is_killed(config, number, step):
    if (number, step) == (1, 3) and not os.path.exists(config["log"]):
        with open(config["log"], "w"):
            os.kill(os.getpid(), signal.SIGKILL)


def tuner_of(tmp_path, function, num=3, **about):
    space = {"x": tune.grid_search(list(range(num))), "log": str(tmp_path / "log")}
    return make_tuner(tmp_path, function, space, **{"max_concurrent_trials": 2, **about})


def test_a_trial_is_tried_again_from_its_checkpoint(tmp_path):
    run = {"failure_config": tune.FailureConfig(max_failures=2)}
    grid = tuner_of(tmp_path, steps_of(before=is_killed), run=run).fit()
    assert statuses(grid) == ["TERMINATED"] * 3
    rows = grid[1].metrics_dataframe
    assert rows["step"].tolist() == rows["training_iteration"].tolist() == [1, 2, 3]
    assert rows["start"].tolist() == [0, 0, 2], "it went on after what was committed"


@pytest.mark.parametrize("fail_fast", [pytest.param(True, marks=pytest.mark.slow), "raise"])
def test_with_fail_fast_the_first_failure_ends_the_search_which_can_be_continued(tmp_path, fail_fast):
    run = {"failure_config": tune.FailureConfig(fail_fast=fail_fast)}
    tuner = tuner_of(tmp_path, steps_of(before=fails), num=5, run=run, max_concurrent_trials=1)
    if fail_fast == "raise":
        with pytest.raises(WorkerGroupError, match="as planned"):
            tuner.fit()
        grid = tuner.get_results()
    else:
        grid = tuner.fit()
    assert statuses(grid) == ["TERMINATED", "ERROR"]
    search = load_search(tmp_path / "search")
    assert (search.is_complete, search.why) == (False, f"trial {search.id}_00001 failed and fail_fast is set")
    assert grid.status == "failed"

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
        if self.too_much == "__call__" and trial_id.endswith("1"):
            raise ZeroDivisionError("too much")
        return False


ADVISERS = [
    (RaisingScheduler, "on_trial_result"),
    (RaisingSearcher, "suggest"),
    (RaisingStopper, "__call__"),
    pytest.param(RaisingScheduler, "choose", marks=pytest.mark.slow),
    pytest.param(RaisingSearcher, "on_trial_complete", marks=pytest.mark.slow),
]


@pytest.mark.parametrize(("kind", "method"), ADVISERS, ids=lambda value: getattr(value, "__name__", value))
def test_an_adviser_that_raises_is_named_and_the_search_can_be_continued(tmp_path, monkeypatch, kind, method):
    def tuner():
        given = {RaisingScheduler: {"scheduler": kind()}, RaisingSearcher: {"search_alg": kind()}}.get(kind, {})
        run = {"stop": kind()} if kind is RaisingStopper else {}
        return tuner_of(tmp_path, steps_of(2), num=2, run=run, **given)

    monkeypatch.setattr(kind, "too_much", method)
    words = f"{kind.__name__} raised ZeroDivisionError: too much in {method}"
    with pytest.raises(tune.TuneError, match=words) as raised:
        tuner().fit()
    assert isinstance(raised.value.__cause__, ZeroDivisionError)
    monkeypatch.setattr(kind, "too_much", "")
    grid = tuner().fit()
    assert statuses(grid) == ["TERMINATED"] * 2
    assert [result.metrics_dataframe["step"].tolist() for result in grid] == [[1, 2]] * 2


def test_a_scheduler_that_answers_nonsense_and_a_function_that_raises_are_named(tmp_path):
    class Vague(tune.TrialScheduler):
        def on_trial_result(self, trial, result):
            return "PERHAPS"

    def too_strict(trial_id, result):
        raise KeyError("accuracy")

    words = r"Vague raised ValueError: the answer of a scheduler must be CONTINUE, PAUSE, STOP or NOOP, got 'PERHAPS'"
    with pytest.raises(tune.TuneError, match=words):
        tuner_of(tmp_path, steps_of(2), num=1, scheduler=Vague()).fit()
    with pytest.raises(tune.TuneError, match=r"stopper too_strict raised KeyError: 'accuracy' .* for trial \w+_0000"):
        tuner_of(tmp_path, steps_of(2), num=1, run={"name": "strict", "stop": too_strict}).fit()


def test_a_metric_that_is_needed_and_never_reported_is_an_error(tmp_path):
    def other(config):
        tune.report({"accuracy": 1.0})

    with pytest.raises(ValueError, match=r"never reported 'loss', .* it reported accuracy"):
        tuner_of(tmp_path, other, scheduler=ASHAScheduler()).fit()
    grid = tuner_of(tmp_path, other, run={"name": "nobody_asks"}, metric=None, mode=None).fit()
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
    assert load_search(tmp_path / "search").best.value == 5.0
    assert len(tuner_of(tmp_path, odd, scheduler=ASHAScheduler(grace_period=1, max_t=3)).fit()) == 3, "read again"


def endless(config):
    while True:
        time.sleep(0.01)
        tune.report({"loss": config["x"]})


class LaterClock(SystemClock):
    num_hours = 0

    def wall(self):
        return super().wall() + 3600 * self.num_hours


class PassTime(tune.Callback):
    """An hour passes whenever two further trials have reported."""

    def __init__(self, clock):
        self.clock, self.reported = clock, set()

    def on_trial_result(self, iteration, trials, trial, result, **about):
        self.reported.add(trial.trial_id)
        self.clock.num_hours = len(self.reported) // 2


@pytest.mark.parametrize("budget", [pytest.param(3600, marks=pytest.mark.slow), timedelta(hours=1)])
def test_the_time_ends_trials_at_their_next_report_and_completes_the_search(tmp_path, budget):
    clock = LaterClock()
    passes = PassTime(clock)
    journal = tmp_path / "search" / "journal.jsonl"

    def fit(budget):
        config = tune.TuneConfig(num_samples=-1, time_budget_s=budget, max_concurrent_trials=2, seed=1)
        run_config = tune.RunConfig(name="search", storage_path=str(tmp_path), callbacks=[passes])
        tuner = tune.Tuner(endless, param_space={"x": tune.uniform(0, 1)}, tune_config=config, run_config=run_config)
        tuner._run_environment = RunEnvironment(clock=clock)
        return tuner.fit()

    grid = fit(budget)
    assert statuses(grid) == ["TERMINATED"] * 2
    assert {result.why for result in grid} == {"time_budget_s=3600 is over"}
    search = load_search(tmp_path / "search")
    assert (search.is_complete, search.stopped_because) == (True, "time_budget_s=3600 is over")
    before = journal.read_bytes()
    assert len(fit(budget)) == 2
    assert journal.read_bytes() == before, "nothing was run"

    more = fit(search.ran_s + 3600)
    assert len(more) == 4, "with more time there are more trials"
    assert [result.metrics["loss"] for result in more[:2]] == [result.metrics["loss"] for result in grid]

    lines = journal.read_bytes().splitlines(keepends=True)
    over = max(number for number, line in enumerate(lines) if b'"no_more_trials"' in line)
    journal.write_bytes(b"".join(lines[: over + 1]))
    assert len(fit(search.ran_s + 3600)) == 4, "a driver that finds the time over makes no trial"
    assert load_search(tmp_path / "search").is_complete


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
    search = load_search(tmp_path / "search")
    assert search.is_complete
    assert 5 <= sum(trial.iteration for trial in search.trials.values()) <= 6
    assert len(tuner_of(tmp_path, endless, num=4, run={"stop": Enough()}).fit()) == 2, "it stays ended"
