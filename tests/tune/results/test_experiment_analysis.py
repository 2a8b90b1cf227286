"""ExperimentAnalysis: the trials of a search, as `tune.run` gives them and as they are read from a path."""

import math

import pytest

from paceline import tune
from paceline.tune.results.result import Result


def train_func(config):
    for step in range(1, 4):
        loss = config["lr"] + (math.nan if config["lr"] == 0.2 and step == 3 else step % 3)
        tune.report({"loss": loss, "eval": {"f1": step}}, checkpoint=tune.Checkpoint.from_dict({"step": step}))


@pytest.fixture(scope="module")
def analyses(tmp_path_factory):
    path = tmp_path_factory.mktemp("searches")
    space = {"lr": tune.grid_search([0.3, 0.1, 0.2])}
    how = {"metric": "loss", "mode": "min", "max_concurrent_trials": 1, "verbose": 0}
    ran = tune.run(train_func, name="exp", config=space, storage_path=path, **how)
    return {"ran": ran, "read": tune.ExperimentAnalysis(path / "exp")}


@pytest.mark.parametrize("kind", ["ran", "read"])
def test_it_answers_what_rays_does(analyses, kind):
    analysis = analyses[kind]
    first, second, third = analysis.trials
    assert analysis.best_trial == second
    assert analysis.best_config == analysis.get_best_config() == {"lr": 0.1}
    assert analysis.best_logdir == analysis.get_best_logdir() == analyses["ran"].best_logdir
    assert analysis.get_best_trial(mode="max") == first
    assert analysis.get_best_trial("loss", "max", "all") == first
    assert analysis.get_best_trial("nothing", "max") is None
    assert analysis.best_result["loss"] == analysis.best_result_df["loss"].item() == 0.1
    assert (*analysis.best_dataframe["loss"],) == (1.1, 2.1, 0.1)
    assert [*analysis.dataframe()["config/lr"]] == [0.3, 0.1, 0.2]
    assert [*analysis.dataframe("loss", "max")["training_iteration"]] == [2, 2, 2]
    assert [*analysis.results_df["eval/f1"]] == [3, 3, 3]
    assert list(analysis.results_df.index) == list(analysis.results) == [trial.trial_id for trial in analysis.trials]
    assert analysis.get_all_configs(prefix=True)[third.trial_id] == {"config/lr": 0.2}
    assert [len(frame) for frame in analysis.fetch_trial_dataframes().values()] == [3, 3, 3]
    assert analysis.runner_data()["trials"] == analysis.stats()["trials"] == {"TERMINATED": 3}
    assert analysis.best_checkpoint.to_dict() == {"step": 3}
    assert analysis.get_best_checkpoint(first, mode="max").to_dict() == {"step": 2}
    assert analysis.get_best_checkpoint(third.trial_id, "eval/f1", "min").to_dict() == {"step": 1}
    assert analysis.get_best_checkpoint(third).to_dict() == {"step": 1}  # nan is worse than any number.
    assert analysis.get_last_checkpoint(analysis.best_logdir).to_dict() == {"step": 3}
    assert [value for _, value in analysis.get_trial_checkpoints_paths(first)] == [1.3, 2.3, 0.3]
    grid = tune.ResultGrid(analysis)
    assert (grid.experiment_path, len(grid)) == (analysis.experiment_path, 3)
    assert grid.get_best_result().path == analysis.best_logdir


def test_it_is_read_with_other_defaults_or_for_some_trials(analyses):
    path, trials = analyses["ran"].experiment_path, analyses["ran"].trials
    other = tune.ExperimentAnalysis(f"{path}/experiment_state.json", default_metric="eval/f1", default_mode="max")
    assert other.best_config == {"lr": 0.3}
    some = tune.ExperimentAnalysis(path, trials=trials[:1])
    assert (len(some.trials), some.best_config) == (1, {"lr": 0.3})
    with pytest.raises(ValueError, match="trial must be a trial of this search, its id or its directory, got 'x'"):
        some.get_best_checkpoint("x")
    with pytest.raises(ValueError, match="default_mode='max' needs a default_metric"):
        tune.ExperimentAnalysis(path, default_mode="max")


def test_a_result_can_be_made_from_its_parts():
    error = ValueError("boom")
    result = Result({"loss": 1, "config": {"lr": 2}}, None, error, "/path", best_checkpoints=[])
    assert (result.metrics["loss"], result.config, result.error, result.path) == (1, {"lr": 2}, error, "/path")
    assert (result.status, result.best_checkpoints) == ("ERROR", [])
    assert result.log_dir is result.metrics_dataframe is None
    assert "boom" in repr(result)
