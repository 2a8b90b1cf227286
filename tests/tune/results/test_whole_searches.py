"""Searches as a user runs them: what is seen of one, and what is left of it, on a disk and in a store."""

import re
import uuid
from pathlib import Path

import pytest

from paceline import tune
from paceline.tune.driver import events, search_spec
from paceline.tune.results.scopes import SCOPES
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


def make_tuner(storage_path):
    return tune.Tuner(
        train_func,
        param_space={"lr": tune.grid_search([0.2, 0.1, 0.3]), "data": "mnist"},
        tune_config=tune.TuneConfig(metric="loss", mode="min", max_concurrent_trials=1),
        run_config=tune.RunConfig(name="lr-search", storage_path=storage_path),
    )


def searched(storage_path):
    return make_tuner(storage_path).fit()


def steady(text, directory):
    """Without what is different each time: where it ran, how long it took, the lines of our own files."""
    text = text.replace(str(directory), "/results")
    text = re.sub(r"\d+(\.\d+)? s\b", "# s", text)
    text = re.sub(r"\b[0-9a-f]{5}_(?=\d{5})", "", text)  # The id of the search.
    return re.sub(r"\[00002\] (  File .*|Traceback.*|    .*)\n", "", text)


def describe_results(grid):
    """All that a user can ask of the results, as values that compare."""
    frames = [grid.get_dataframe(), grid.get_dataframe("loss", "max")]
    frames += [result.metrics_dataframe for result in grid if result.metrics]
    best = [grid.get_best_result(scope=scope).trial_id for scope in SCOPES]
    results = [(r.trial_id, r.status, r.why, r.config, r.metrics, r.path, r.lineage) for r in grid]
    checkpoints = [r.checkpoint.path if r.checkpoint else None for r in grid]
    return [frame.to_json() for frame in frames], best, results, checkpoints, repr(grid)


@pytest.mark.parametrize("most_events", [1000, 5])
def test_all_that_a_small_search_prints_and_its_results_are_those_of_its_journal_which_is_not_read(
    tmp_path, monkeypatch, capsys, most_events
):
    monkeypatch.setattr(search_spec, "MAX_EVENTS_IN_MEMORY", most_events)
    tuner = make_tuner(tmp_path)
    with monkeypatch.context() as patched:
        patched.delattr(events, "decode")  # No journal of a search is read without it.
        grid = tuner.fit()
        recorded = capsys.readouterr()
        assert steady(recorded.err, tmp_path) == (GOLDEN / "whole_search_err.txt").read_text()
        assert steady(recorded.out, tmp_path) == (GOLDEN / "whole_search_out.txt").read_text()
        assert tuner.get_results() is grid
        if most_events == 1000:
            in_memory = describe_results(grid)
        else:
            with pytest.raises(AttributeError, match="decode"):
                grid.get_best_result(scope="all")
    in_memory = in_memory if most_events == 1000 else describe_results(grid)
    assert in_memory == describe_results(tune.ResultGrid.from_path(tmp_path / "lr-search"))
    assert in_memory == describe_results(tune.Tuner.restore(str(tmp_path / "lr-search"), train_func).get_results())
    assert in_memory == describe_results(searched(tmp_path)), "complete: replayed, not run"
    assert "search lr-search has already finished" in capsys.readouterr().err
    (error,) = grid.errors
    assert isinstance(error.__cause__, ValueError)


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
