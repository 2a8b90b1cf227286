"""`report({"loss": train.mean(x)})` with real workers: reduced in all places, each rank's own value kept."""

import numpy as np
import pytest

from paceline import train
from paceline.train import Checkpoint, CheckpointConfig, Result


def report_losses():
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


def test_results_frames_checkpoints_and_the_terminal_have_values_reduced_over_the_ranks(fit, monkeypatch, capsys):
    monkeypatch.setenv("PACELINE_VERBOSITY", "2")
    best = CheckpointConfig(num_to_keep=1, checkpoint_score_attribute="loss", checkpoint_score_order="min")
    result = fit(report_losses, checkpoint_config=best)
    assert "report 1: loss=0.5, samples=3" in capsys.readouterr().err

    mean = (float(np.float32(0.3)) + float(np.float32(0.6))) / 2
    expected = {"loss": mean, "samples": 3, "eval": {"worst": 0.6, "best": 0.3}, "weighted": 0.75, "lr": 0.5}
    assert result.metrics == expected
    assert list(result.metrics) == list(expected), "in the order in which they were given"
    assert Result.from_path(result.path).metrics == expected

    frame = result.metrics_dataframe
    assert frame["eval/worst"].tolist() == [0.9, 0.3, 0.6]
    assert frame["samples"].tolist() == [3, 3, 3]
    own = result.metrics_dataframe_by_rank
    assert own["rank"].tolist() == [0, 1] * 3
    assert own["report"].tolist() == [1, 1, 2, 2, 3, 3]
    assert own["eval/worst"].tolist() == [0.1, 0.9, 0.2, 0.3, 0.3, 0.6]
    assert own["samples"].tolist() == [1, 2] * 3
    first, second = result.metrics_by_rank
    assert (first["eval"], second["eval"]) == ({"worst": 0.3, "best": 0.3}, {"worst": 0.6, "best": 0.6})
    assert (first["lr"], second["lr"]) == (0.5, 1.5)

    (newest, its_metrics), (best, metrics) = result.best_checkpoints
    assert best.to_dict()["losses"] == (0.2, 0.3), "rank 0 alone would have kept another"
    assert metrics["loss"] == pytest.approx(0.25)
    assert newest.to_dict()["losses"] == (0.3, 0.6)
    assert its_metrics["samples"] == 3
    assert result.get_best_checkpoint("loss", "min").to_dict()["losses"] == (0.2, 0.3)
    with pytest.raises(RuntimeError, match=r"Invalid metric name 'nope'; the metrics are .*loss"):
        result.get_best_checkpoint("nope", "max")
    with pytest.raises(ValueError, match="mode must be"):
        result.get_best_checkpoint("loss", "best")
    assert result.return_value == [0.45, 0.25], "workers know the same, the best last"


def test_a_run_that_is_complete_or_continues_has_the_reduced_values_of_before(fit):
    def function(config):
        for i in range(config["number"]):
            train.report({"x": train.sum(i)})
        train.collective.barrier()
        assert config["works"], "planted"

    def run(works, number):
        return fit(function, config={"works": works, "number": number})

    for number in (3, 0):
        with pytest.raises(train.TrainingFailedError) as raised:
            run(works=False, number=number)
        assert raised.value.result.metrics == {"x": 4}, "the last that there is"
    assert run(works=True, number=2).metrics == {"x": 2}
    assert run(works=True, number=2).metrics == {"x": 2}, "and nothing was run"


def test_builtins_are_left_alone_by_a_star():
    names = {}
    exec("from paceline.train import *", names)
    assert not {"sum", "max", "min"} & names.keys()
