"""Searches as a user runs them: what is seen of one, and what is left of it, on a disk and in a store."""

import re
import uuid
from pathlib import Path

import pytest

from paceline import tune
from paceline.train.loggers import JsonLoggerCallback
from servers import BUCKET

GOLDEN = Path(__file__).parent / "golden"


def train_func(config):
    if config["lr"] == 0.3:
        raise ValueError("lr is too high")
    begun = tune.get_checkpoint()
    for step in range(begun.to_dict()["step"] + 1 if begun else 0, 4):
        if step == 0:
            print("begins with", config["lr"])
        checkpoint = tune.Checkpoint.from_dict({"step": step})
        tune.report({"loss": config["lr"] * 10 - step}, checkpoint=checkpoint)


def searched(storage_path, name="lr-search", callbacks=(), lrs=(0.2, 0.1, 0.3), **run_config):
    tuner = tune.Tuner(
        train_func,
        param_space={"lr": tune.grid_search(list(lrs)), "data": "mnist"},
        tune_config=tune.TuneConfig(metric="loss", mode="min", max_concurrent_trials=1),
        run_config=tune.RunConfig(name=name, storage_path=storage_path, callbacks=list(callbacks), **run_config),
    )
    return tuner.fit()


def steady(text, directory):
    """Without what is different each time: where it ran, how long it took, the lines of our own files."""
    text = text.replace(str(directory), "/results")
    text = re.sub(r"\d+(\.\d+)? s\b", "# s", text)
    return re.sub(r"\[00002\] (  File .*|Traceback.*|    .*)\n", "", text)


def test_all_that_a_small_search_prints_where_there_is_no_terminal(tmp_path, capsys):
    results = searched(tmp_path)
    told = capsys.readouterr()
    assert steady(told.err, tmp_path) == (GOLDEN / "whole_search_err.txt").read_text()
    assert steady(told.out, tmp_path) == (GOLDEN / "whole_search_out.txt").read_text()
    best = results.get_best_result()
    assert (best.config["lr"], best.metrics["loss"], best.checkpoint.to_dict()) == (0.1, -2.0, {"step": 3})
    assert [str(error.worker_failures[0]) for error in results.errors] == ["lr is too high"]
    assert searched(tmp_path).get_best_result().metrics == best.metrics
    assert "search lr-search is already complete" in capsys.readouterr().err


class Looking(tune.Callback):
    """Reads the search from another place while it runs."""

    def __init__(self, directory):
        self.directory = directory
        self.seen = []

    def on_trial_result(self, iteration, trials, trial, result, **info):
        if result["training_iteration"] == 2:
            results = tune.ResultGrid.from_path(self.directory)
            own = results[int(trial.trial_id)]
            self.seen.append((own.status, list(own.metrics_dataframe["loss"]), results.num_terminated))


def test_a_search_is_read_while_it_runs_and_nothing_of_it_is_changed(tmp_path):
    looking = Looking(tmp_path / "lr-search")
    searched(tmp_path, callbacks=[looking, JsonLoggerCallback()], lrs=(0.2, 0.1))
    assert looking.seen == [("RUNNING", [2.0, 1.0], 0), ("RUNNING", [1.0, 0.0], 1)]
    for trial in ("trial_00000", "trial_00001"):
        assert len((tmp_path / "lr-search" / trial / "result.json").read_text().splitlines()) == 4


def test_the_results_of_a_search_in_a_store(s3_environment, tmp_path, monkeypatch):
    monkeypatch.setenv("PACELINE_SPOOL_PATH", str(tmp_path / "spool"))
    where = f"s3://{BUCKET}/{uuid.uuid4().hex}"
    searched(where)
    results = tune.ResultGrid.from_path(f"{where}/lr-search")
    assert (len(results), results.num_errors) == (3, 1)
    best = results.get_best_result(scope="avg")
    assert (best.config["lr"], best.checkpoint.to_dict()) == (0.1, {"step": 3})
    assert best.path == f"{where.removeprefix('s3://')}/lr-search/trial_00001"
    assert results.filesystem.get_file_info(results.experiment_path).type.name == "Directory"
    assert list(best.metrics_dataframe["loss"]) == [1.0, 0.0, -1.0, -2.0]
    assert len(best.best_checkpoints) == 4
    assert "lr is too high" in str(results.errors[0])


def test_objects_of_a_configuration_are_there_with_the_space_and_named_without(tmp_path):
    def of_kind(config):
        tune.report({"loss": config["kind"](3) + config["pair"][1]})

    space = {"kind": tune.grid_search([int, float]), "pair": (1, 2)}
    config = tune.RunConfig(name="kinds", storage_path=tmp_path)
    results = tune.Tuner(of_kind, param_space=space, run_config=config).fit()
    assert [result.config for result in results] == [{"kind": int, "pair": (1, 2)}, {"kind": float, "pair": (1, 2)}]
    assert list(results[0].metrics_dataframe["config/kind"]) == [int]
    read = tune.ResultGrid.from_path(tmp_path / "kinds")
    assert [repr(result.config["kind"]) for result in read] == ["<int>", "<float>"]
    assert read[0].config["pair"] == (1, 2)
    assert read.get_best_result("loss", "max").metrics["config"]["pair"] == (1, 2)


@pytest.mark.parametrize("kind", ["all", "parallel", "importance", "curves"])
def test_a_search_is_plotted(tmp_path, kind):
    pytest.importorskip("matplotlib")
    results = tune.ResultGrid.from_path(a_search_once(tmp_path))
    results.plot(kind).savefig(tmp_path / "search.png")
    assert (tmp_path / "search.png").stat().st_size > 5000
    with pytest.raises(RuntimeError, match="no trial has reported 'acc'"):
        results.plot(metric="acc", mode="max")


def a_search_once(tmp_path):
    from told_search import Told

    told = Told()
    told.starts()
    for number in range(6):
        told.trial(f"{number:05d}", 1.0 / (number + 1), 0.5 / (number + 1), config={"lr": number / 10, "act": "relu"})
    told.trial("00006", ending="failed", why="ValueError: boom")
    return told.written_to(tmp_path / "search")
