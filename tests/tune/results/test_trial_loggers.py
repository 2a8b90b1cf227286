"""What a search logs of its trials: by callbacks with hooks for all trials, and in files of each trial."""

import csv
import json
import re
from pathlib import Path

import pytest
from tuners import Counts, make_tuner

from paceline import cli, train, tune
from paceline.train.backend import is_installed
from paceline.tune.logger import CSVLoggerCallback, JsonLoggerCallback, LoggerCallback
from paceline.tune.results.report_history import ADDED_METRICS

NUM_REPORTS = 200


def report_fast(config):
    for step in range(NUM_REPORTS):
        tune.report({"step": step, "eval": {"loss": step * config["x"]}})
    tune.report({"step": NUM_REPORTS}, checkpoint=tune.Checkpoint.from_dict({"x": config["x"]}))
    if config["x"] == 2:
        raise ValueError("boom")


class Log(LoggerCallback):
    def __init__(self):
        self.hooks, self.steps = {}, {}

    def setup(self, **info):
        self.total = info["total_num_samples"]

    def log_trial_start(self, trial):
        self.hooks[trial] = [(trial, "start")]
        Path(trial.local_path, "own.txt").write_text(trial.trial_id[-5:])

    def log_trial_result(self, iteration, trial, result):
        self.steps.setdefault(trial, []).append(result["step"])

    def log_trial_save(self, trial):
        self.hooks[trial].append((trial, trial.checkpoint.name))

    def log_trial_end(self, trial, failed=False):
        self.hooks[trial].append((trial, failed))


def search(path, trainable, space, callbacks, **run):
    return make_tuner(path, trainable, space, {"callbacks": callbacks, **run}).fit()


def test_hooks_get_every_result_of_trials_that_stay_the_same_and_each_trial_has_its_files(tmp_path):
    log = Log()
    grid = search(tmp_path, report_fast, {"x": tune.grid_search([1, 2])}, [log])
    saved = f"checkpoint_{NUM_REPORTS + 1:06d}"
    ends = {trial.trial_id[-5:]: [what for same, what in hooks if same is trial] for trial, hooks in log.hooks.items()}
    assert (log.total, ends) == (2, {"00000": ["start", saved, False], "00001": ["start", saved, True]})
    assert [*log.steps.values()] == [[*range(NUM_REPORTS + 1)]] * 2
    for x, result in zip((1, 2), grid, strict=True):
        path = Path(result.path)
        assert (path / "own.txt").read_text() == f"{x - 1:05d}"
        assert json.loads((path / "params.json").read_text()) == {"x": x}
        rows = [json.loads(line) for line in (path / "result.json").read_text().splitlines()]
        assert [row["training_iteration"] for row in rows] == [*range(1, NUM_REPORTS + 2)]
        cells = [*csv.DictReader((path / "progress.csv").read_text().splitlines())]
        assert [cell["eval/loss"] for cell in cells] == [str(step * x) for step in range(NUM_REPORTS)] + [""]
        assert len([*path.glob("events.out.tfevents.*")]) == is_installed("tensorboard")


def test_results_and_files_have_what_ray_adds_after_a_restart_too_and_the_own_metric_wins(tmp_path, capsys):
    def fail_once(config):
        first = tune.get_checkpoint().to_dict()["step"] + 1 if tune.get_checkpoint() else 0
        for step in range(first, 3):
            added = {"node_ip": "mine"} if step == 2 else {}
            tune.report({"step": step, **added}, checkpoint=tune.Checkpoint.from_dict({"step": step}))
            if first == step == 0:
                raise ValueError("once")

    class Collect(tune.Callback):
        def on_trial_result(self, iteration, trials, trial, result, **info):
            results.append(result)

    results = []
    grid = search(tmp_path, fail_once, {"x": 1}, [Collect()], failure_config={"max_failures": 1})
    rows = [json.loads(line) for line in Path(grid[0].path, "result.json").read_text().splitlines()]
    cells = [*csv.DictReader(Path(grid[0].path, "progress.csv").read_text().splitlines())]
    added = set(ADDED_METRICS)
    for each in (results, rows):
        assert [set(result) - {"step"} for result in each] == [added] * 3
        assert [result["iterations_since_restore"] for result in each] == [1, 1, 2]
        assert [result["node_ip"] for result in each] == ["127.0.0.1", "127.0.0.1", "mine"]
        assert len({result["pid"] for result in each}) == 2
        assert (each[1]["trial_id"], each[1]["config"]) == (grid[0].trial_id, {"x": 1})
        assert each[2]["time_total_s"] >= each[2]["time_since_restore"] >= each[1]["time_since_restore"] >= 0
    assert [set(cell) - {"step"} for cell in cells] == [added - {"config"}] * 3
    assert {"config/x", *added} - set(grid.get_dataframe().columns) == {"config"}
    assert cli.main(["show", str(tmp_path / "search")]) == 0
    assert not added & {*re.findall(r"\w+", capsys.readouterr().out)} - {"config"}


def test_show_ranks_named_trials_by_the_metric_and_mode_of_the_search(tmp_path, capsys):
    def train_func(config):
        tune.report({"eval": {"acc": config["x"]}, "loss": config["x"]})

    def create_name(trial):
        assert str(trial) == trial.trial_name == f"train_func_{trial.trial_id}"
        return f"x{trial.config['x']}"

    about = {"metric": "eval/acc", "mode": "max", "trial_name_creator": create_name}
    make_tuner(tmp_path, train_func, {"x": tune.grid_search([1, 3, 2])}, {"verbose": 0}, **about).fit()
    capsys.readouterr()
    assert cli.main(["show", str(tmp_path / "search")]) == 0
    printed = capsys.readouterr().out
    assert "best trial  x3 with x=3\n" in printed
    rows = [line.split() for line in printed.splitlines() if line.startswith("  trial_")]
    ranked = [(f"trial_0000{n}", f"(x{x})", f"eval/acc={x}") for n, x in ((1, 3), (2, 2), (0, 1))]
    assert [(row[0], row[1], row[5]) for row in rows] == ranked
    assert cli.main(["ls", "--trials", "--sort", "name", str(tmp_path)]) == 0
    assert "\nsearch/trial_00000 (x1) " in capsys.readouterr().out


def test_files_of_trials_are_written_by_a_logger_that_is_given_or_else_unless_switched_off(tmp_path, monkeypatch):
    class Rounded(JsonLoggerCallback):
        def log_trial_result(self, iteration, trial, result):
            super().log_trial_result(iteration, trial, {**result, "a": round(result["a"]), "who": str(trial)})

    def report_once(config):
        tune.report({"a": 1.4})

    (result,) = search(tmp_path / "a", report_once, {}, [CSVLoggerCallback(tmp_path / "logs")])
    assert not Path(result.path, "progress.csv").exists()
    assert Path(result.path, "result.json").exists()
    monkeypatch.setenv("TUNE_DISABLE_AUTO_CALLBACK_LOGGERS", "1")
    (result,) = search(tmp_path / "b", report_once, {}, [Rounded(tmp_path / "own")])
    assert not any(Path(result.path, name).exists() for name in ("progress.csv", "result.json", "params.json"))
    (row,) = map(json.loads, next((tmp_path / "own").rglob("result.json")).read_text().splitlines())
    assert (row["a"], row["who"], row["training_iteration"]) == (1, f"report_once_{result.trial_id}", 1)


class Asks(tune.Callback):
    def on_trial_result(self, iteration, trials, trial, result, **info):
        if result["training_iteration"] in (3, 4, 6):
            result["should_checkpoint"] = True


class Remembers(tune.Callback):
    def __init__(self):
        self.seen = {"results": 0, "recovered": [], "saved": []}

    def on_trial_result(self, iteration, trials, trial, result, **info):
        self.seen["results"] += 1

    def on_trial_recover(self, iteration, trials, trial, **info):
        self.seen["recovered"].append(trial.trial_id[-5:])

    def on_checkpoint(self, iteration, trials, trial, checkpoint, **info):
        self.seen["saved"].append(checkpoint.name)

    def get_state(self):
        return self.seen

    def set_state(self, state):
        self.seen = state


def test_a_callback_has_its_state_again_when_the_search_is_resumed_and_hears_of_retries(tmp_path):
    def fail_once(config):
        tune.report({"a": 1}, checkpoint=tune.Checkpoint.from_dict({"a": 1}))
        if not Path("failed").exists():
            Path("failed").touch()
            raise ValueError("once")

    for num_samples in (1, 2):
        first, second = Remembers(), Remembers()
        run = {"callbacks": [first, second], "failure_config": {"max_failures": 1}}
        make_tuner(tmp_path, fail_once, run=run, num_samples=num_samples).fit()
    saved = ["checkpoint_000001", "checkpoint_000002"] * 2
    assert first.seen == second.seen == {"results": 4, "recovered": ["00000", "00001"], "saved": saved}
    assert tune.Tuner.can_restore(tmp_path / "search")


def test_a_callback_asks_for_a_checkpoint_of_a_class_and_of_a_function_in_vain_which_is_said_once(tmp_path, caplog):
    config = tune.CheckpointConfig(checkpoint_frequency=4)
    (result,) = search(tmp_path, Counts, {"to": 7}, [Asks()], checkpoint_config=config)
    kept = [(checkpoint.to_dict()["count"], metrics["count"]) for checkpoint, metrics in result.best_checkpoints]
    assert kept == [(3, 3), (4, 4), (6, 6)]
    assert result.metrics["count"] == 7
    search(tmp_path / "function", report_fast, {"x": 1}, [Asks()])
    assert caplog.text.count("a callback set should_checkpoint, but only a tune.Trainable") == 1


def test_hooks_that_would_never_be_called_are_refused(tmp_path):
    class Misplaced(train.LoggerCallback):
        def log_trial_result(self, iteration, trial, result):
            raise AssertionError("never called")

    with pytest.raises(ValueError, match=r"Misplaced\.log_trial_result\(\) would never be called"):
        tune.RunConfig(callbacks=[Misplaced()])
    with pytest.raises(ValueError, match="Asks in callbacks is a callback of a search: a run never calls its hooks"):
        train.DataParallelTrainer(print, run_config=train.RunConfig(storage_path=tmp_path, callbacks=[Asks()])).fit()
