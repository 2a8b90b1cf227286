"""Progress reporters: what is shown, and when a reporter of the user's is called."""

import pytest
from tuners import make_tuner

from paceline import tune
from paceline.tune.trial import Trial


def make_trials():
    config = {"lr": 0.1, "model": {"layers": 2}}
    failed = Trial("x_0", config, "ERROR", why="ValueError: boom\nmore", local_path="/runs/0")
    times = {"training_iteration": 3, "time_total_s": 1.5}
    result = {"loss": 0.5, "eval": {"f1": 1}, "name": "text", **times, "config": {}}
    ran = [Trial(f"x_{n}", {"lr": n}, "RUNNING", {**result, "loss": 1 / n}) for n in (1, 2, 3)]
    return [failed, *ran, Trial("x_4", {"lr": "a value that is much too long"}, "PENDING")]


def test_the_table_has_the_columns_rows_and_errors_that_were_asked_for():
    reporter = tune.CLIReporter(max_progress_rows=4, max_column_length=10, metric="loss", mode="min", total_samples=9)
    text = reporter.format_report(make_trials(), False, "Using FIFO")
    assert "Number of trials: 5/9 (3 RUNNING, 1 PENDING, 1 ERROR)" in text
    assert "Current best trial: trial_x_3 with loss=0.333333 and parameters={'lr': 3}" in text
    table = [line.split() for line in text.splitlines() if line.startswith("  ")]
    assert " ".join(table[0]) == "Trial name status lr model/layers iter total time (s) loss eval/f1"
    assert [row[0] for row in table[1:5]] == [f"trial_x_{number}" for number in (1, 2, 3, 4)]
    assert table[4][2:] == ["...oo", "long"]
    assert "... 1 more trials not shown (1 ERROR)" in text
    assert "  trial_x_0: ValueError: boom; see /runs/0" in text
    reporter = tune.CLIReporter(metric_columns={"eval/f1": "F1"}, parameter_columns=[], sort_by_metric=True)
    assert reporter.set_search_properties("loss", "min")
    assert not reporter.set_search_properties("accuracy", "max")
    reporter.add_metric_column("name", "called")
    text = reporter.format_report(make_trials(), False)
    table = [line.split() for line in text.splitlines() if line.startswith("  ")]
    assert table[:2] == [["Trial", "name", "status", "F1", "called"], ["trial_x_3", "RUNNING", "1", "text"]]
    assert [row[0] for row in table[1:6]] == [f"trial_x_{number}" for number in (3, 2, 1, 0, 4)]
    with pytest.raises(ValueError, match="there is a column of metric 'name' already"):
        reporter.add_metric_column("name")


def test_it_reports_at_most_as_often_as_it_should_and_at_the_end():
    reporter = tune.JupyterNotebookReporter(max_report_frequency=1000)
    assert [reporter.should_report([]), reporter.should_report([]), reporter.should_report([], done=True)] == [1, 0, 1]
    quiet = tune.CLIReporter(print_intermediate_tables=False)
    assert [quiet.should_report([]), quiet.should_report([], done=True)] == [False, True]


def train_func(config):
    tune.report({"loss": config["lr"]})


class Records(tune.ProgressReporter):
    def __init__(self):
        self.calls = []

    def setup(self, start_time=None, total_samples=None, metric=None, mode=None, **kwargs):
        self.calls.append((total_samples, metric, mode))

    def should_report(self, trials, done=False):
        return done or any(trial.status == "RUNNING" for trial in trials)

    def report(self, trials, done, *sys_info):
        self.calls.append((len(trials), done, sys_info))
        if not done:
            print("still running")


class Raises(Records):
    def report(self, trials, done, *sys_info):
        raise ValueError("not today")


def search(path, reporter, verbose=1):
    run = {"name": None, "progress_reporter": reporter, "verbose": verbose}
    return make_tuner(path, train_func, {"lr": tune.grid_search([1, 2])}, run, metric="loss", mode="min").fit()


def test_a_reporter_of_the_user_is_asked_and_called_and_one_that_raises_is_dropped(tmp_path, capsys, caplog):
    reporter = Records()
    search(tmp_path, reporter)
    assert reporter.calls[0] == (2, "loss", "min")
    assert {done for _, done, _ in reporter.calls[1:-1]} == {False}
    assert reporter.calls[-1] == (2, True, ("Using FIFOScheduler",))
    shown = capsys.readouterr()
    assert "still running" in shown.out
    assert "started" not in shown.err
    assert "finished after" in shown.err
    assert len(search(tmp_path, Raises())) == 2
    assert "not today" in caplog.text
    silent = Records()
    search(tmp_path, silent, verbose=0)
    assert silent.calls == []
