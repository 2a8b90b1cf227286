"""`RunConfig(stop=, verbose=, log_to_file=)`, `FailureConfig(fail_fast=)` and `metadata=` of a run."""

import pytest

from paceline import train
from paceline.train import Checkpoint, FailureConfig, LoggingConfig, RunConfig
from paceline.tune.stopper import MaximumIterationStopper


def train_forever():
    state = train.get_checkpoint()
    step = state.to_dict()["step"] if state else 0
    while True:
        step += 1
        print("step", step)
        train.report({"loss": 1 / step, "eval": {"step": step}}, checkpoint=Checkpoint.from_dict({"step": step}))


@pytest.mark.parametrize(
    "stop",
    [
        {"training_iteration": 3},
        {"eval": {"step": 3}},
        lambda run, metrics: run == "run" and metrics["loss"] < 0.4,
        [{"loss": 2}, MaximumIterationStopper(3)],
    ],
)
def test_a_run_ends_at_the_report_that_reaches_stop_and_has_no_more_to_do(fit, stop):
    result = fit(train_forever, stop=stop, verbose=0)
    assert (result.status, result.metrics["eval"]) == ("stopped", {"step": 3})
    assert result.checkpoint.to_dict() == {"step": 3}
    assert len(result.metrics_dataframe) == 3
    again = fit(train_forever, stop=stop, verbose=0)
    assert len(again.metrics_dataframe) == 3, "it is still reached"


def test_a_condition_that_raises_ends_the_run_with_its_error(fit):
    with pytest.raises(KeyError, match="accuracy"):
        fit(train_forever, stop=lambda run, metrics: metrics["accuracy"] > 0.9)


def test_verbose_and_the_log_level_say_how_much_is_printed_and_log_to_file_where(fit, capsys):
    result = fit(train_forever, 1, stop={"training_iteration": 2}, verbose=0, log_to_file=("out", "err"))
    captured = capsys.readouterr()
    assert captured.out + captured.err == ""
    assert (result.log_dir.parent / "out").read_text() == "step 1\nstep 2\n"
    assert (result.log_dir.parent / "err").read_text() == ""
    options = {"stop": {"training_iteration": 1}, "logging_config": LoggingConfig("debug"), "log_to_file": True}
    result = fit(train_forever, 0, name="other", **options)
    assert "report 1: loss=1" in capsys.readouterr().err
    assert (result.log_dir.parent / "stdout").read_text() == "step 1\n"
    assert [RunConfig(verbose=each).verbosity for each in (True, 3, None)] == [1, 2, None]
    assert RunConfig(logging_config={"log_level": "error"}).verbosity == 0


def test_fail_fast_ends_the_run_and_can_raise_what_the_worker_raised(fit):
    def function():
        raise ZeroDivisionError("in the loop")

    with pytest.raises(ZeroDivisionError, match="in the loop"):
        fit(function, failure_config=FailureConfig(fail_fast="raise"))


def test_workers_and_checkpoints_have_the_metadata_of_the_trainer(fit, tmp_path):
    def function():
        context = train.get_context()
        assert context.get_trial_id().endswith("_00000")
        checkpoint = Checkpoint.from_dict({"x": 1})
        checkpoint.set_metadata({"own": 1, "model": "mine"})
        train.report(context.get_metadata(), checkpoint=checkpoint)

    result = fit(function, metadata={"model": "small", "labels": ["a", "b"]})
    assert result.metrics == {"model": "small", "labels": ["a", "b"]}
    assert result.checkpoint.get_metadata() == {"model": "mine", "labels": ["a", "b"], "own": 1}
    assert RunConfig(storage_path=tmp_path, name="run").storage_context.experiment_fs_path == str(tmp_path / "run")
