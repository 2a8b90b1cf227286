"""`report({"loss": train.mean(x)})` with real workers: reduced in all places, each rank's own value kept."""

import math

import numpy as np
import pytest

from paceline import train
from paceline.train import Checkpoint, CheckpointConfig, DataParallelTrainer, Result, RunConfig, ScalingConfig


def fit(path, function, num_workers=2, **run_config):
    return DataParallelTrainer(
        function,
        scaling_config=ScalingConfig(num_workers),
        run_config=RunConfig(name="run", storage_path=path, **run_config),
    ).fit()


def trained():
    rank = train.get_context().get_world_rank()
    # By rank 0 alone the first is the best, over all ranks the second is.
    for losses in ((0.1, 0.9), (0.2, 0.3), (0.3, 0.6)):
        train.report(
            {
                "loss": train.mean(np.float32(losses[rank])),
                "samples": train.sum(rank + 1),
                "eval": {"worst": train.max(losses[rank]), "best": train.min(losses[rank])},
                "weighted": train.mean(float(rank), weight=1 + 2 * rank),
                "lr": 0.5 + rank,
            },
            checkpoint=Checkpoint.from_dict({"losses": losses}) if rank == 0 else None,
        )
    return [round(known.metrics["loss"], 6) for known in train.get_all_reported_checkpoints()]


@pytest.fixture(scope="module")
def reduced(tmp_path_factory):
    best = CheckpointConfig(num_to_keep=1, checkpoint_score_attribute="loss", checkpoint_score_order="min")
    return fit(tmp_path_factory.mktemp("reduced"), trained, checkpoint_config=best)


def test_the_metrics_of_a_result_are_reduced_over_the_ranks(reduced):
    mean = (float(np.float32(0.3)) + float(np.float32(0.6))) / 2
    expected = {"loss": mean, "samples": 3, "eval": {"worst": 0.6, "best": 0.3}, "weighted": 0.75, "lr": 0.5}
    assert reduced.metrics == expected
    assert list(reduced.metrics) == list(expected), "in the order in which they were given"
    assert Result.from_path(reduced.path).metrics == expected


def test_the_data_frame_has_reduced_values_and_that_by_rank_each_ranks_own(reduced):
    frame = reduced.metrics_dataframe
    assert frame["eval/worst"].tolist() == [0.9, 0.3, 0.6]
    assert frame["samples"].tolist() == [3, 3, 3]
    own = reduced.metrics_dataframe_by_rank
    assert own["rank"].tolist() == [0, 1] * 3
    assert own["report"].tolist() == [1, 1, 2, 2, 3, 3]
    assert own["eval/worst"].tolist() == [0.1, 0.9, 0.2, 0.3, 0.3, 0.6]
    assert own["samples"].tolist() == [1, 2] * 3


def test_the_last_values_of_each_rank_can_be_had(reduced):
    first, second = reduced.metrics_by_rank
    assert first["eval"] == {"worst": 0.3, "best": 0.3}
    assert second["eval"] == {"worst": 0.6, "best": 0.6}
    assert (first["lr"], second["lr"]) == (0.5, 1.5)


def test_checkpoints_are_ranked_by_what_all_ranks_say(reduced):
    (newest, its_metrics), (best, metrics) = reduced.best_checkpoints
    assert best.to_dict()["losses"] == (0.2, 0.3), "rank 0 alone would have kept another"
    assert metrics["loss"] == pytest.approx(0.25)
    assert newest.to_dict()["losses"] == (0.3, 0.6)
    assert its_metrics["samples"] == 3
    assert reduced.get_best_checkpoint("loss", "min").to_dict()["losses"] == (0.2, 0.3)
    assert reduced.return_value == [0.45, 0.25], "workers know the same, the best last"


def test_a_run_that_is_complete_or_continues_has_the_reduced_values_of_before(tmp_path):
    def function(config):
        for i in range(config["number"]):
            train.report({"x": train.sum(i)})
        train.collective.barrier()
        assert config["works"], "planted"

    def run(works, number):
        return DataParallelTrainer(
            function,
            train_loop_config={"works": works, "number": number},
            scaling_config=ScalingConfig(2),
            run_config=RunConfig(name="run", storage_path=tmp_path),
        ).fit()

    for number in (3, 0):
        with pytest.raises(train.TrainingFailedError) as raised:
            run(works=False, number=number)
        assert raised.value.result.metrics == {"x": 4}, "the last that there is"
    assert run(works=True, number=2).metrics == {"x": 2}
    assert run(works=True, number=2).metrics == {"x": 2}, "and nothing was run"


def test_nobody_waits_for_anybody(tmp_path):
    def function():
        if train.get_context().get_world_rank() == 0:
            for i in range(50):
                train.report({"i": train.sum(i)})
            train.collective.barrier()
        else:
            train.collective.barrier()  # Rank 0 comes here only if all of its reports have returned.
            for i in range(50):
                train.report({"i": train.sum(i)})

    result = fit(tmp_path, function)
    assert result.metrics_dataframe["i"].tolist() == [2 * i for i in range(50)]


def test_nan_stays_nan_and_a_rank_that_does_not_give_a_metric_is_left_out(tmp_path):
    def function():
        rank = train.get_context().get_world_rank()
        own = {"only": train.sum(5)} if rank == 2 else {"two": train.mean(rank)}
        train.report({"nan": train.max(math.nan if rank == 1 else 1.0), **own})

    result = fit(tmp_path, function, 3)
    assert math.isnan(result.metrics.pop("nan"))
    assert result.metrics == {"two": 0.5, "only": 5}


def test_the_terminal_shows_the_reduced_value(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("PACELINE_VERBOSITY", "2")
    fit(tmp_path, lambda: train.report({"rank": train.sum(train.get_context().get_world_rank() + 1)}))
    assert "report 1: rank=3" in capsys.readouterr().err


def test_different_reductions_of_one_metric_are_an_error_that_names_both_lines(tmp_path):
    def function():
        if train.get_context().get_world_rank() == 0:
            train.report({"x": {"y": train.mean(1)}})
        else:
            train.report({"x": {"y": train.sum(1)}})
        train.collective.barrier()

    with pytest.raises(train.TrainingFailedError) as raised:
        fit(tmp_path, function, failure_config=train.FailureConfig(max_failures=3))
    text = str(raised.value)
    assert "'x/y' by train.mean" in text
    assert "by train.sum" in text
    assert text.count("test_aggregation.py:") >= 2
    assert "hint: one metric is reduced in one way on all ranks" in text
    assert isinstance(raised.value.__cause__, train.ReportMismatchError)


def test_what_cannot_be_reduced_is_refused_in_the_users_own_line(tmp_path):
    def function():
        train.report({"x": train.mean("0.5")})

    with pytest.raises(train.TrainingFailedError, match=r"train\.mean\('0\.5'\): it has to be a number, not a str"):
        fit(tmp_path, function, 1)


def test_without_workers_of_its_own_a_run_reduces_its_one_rank(tmp_path):
    result = fit(tmp_path, lambda: train.report({"x": train.mean(3), "n": train.sum(True)}), 0)
    assert result.metrics == {"x": 3.0, "n": 1}


def test_builtins_are_left_alone_by_a_star():
    names = {}
    exec("from paceline.train import *", names)
    assert not {"sum", "max", "min"} & names.keys()
