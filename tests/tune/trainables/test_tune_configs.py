"""The configurations of a search."""

import dataclasses
import inspect
from pathlib import Path
from typing import Any

import pytest

from paceline import train
from paceline.tune.config import CheckpointConfig, FailureConfig, RunConfig
from paceline.tune.stoppers import MaximumIterationStopper
from paceline.tune.tuner import Tuner


def test_they_are_configurations_of_a_run() -> None:
    config = RunConfig(name="search")
    assert isinstance(config, train.RunConfig)
    assert isinstance(config.failure_config, train.FailureConfig)
    assert isinstance(config.checkpoint_config, train.CheckpointConfig)
    assert isinstance(config.failure_config, FailureConfig)
    assert isinstance(config.checkpoint_config, CheckpointConfig)


def test_a_trainer_takes_one(tmp_path: Path) -> None:
    config = RunConfig(name="run", storage_path=tmp_path, stop={"loss": 1.0})
    assert train.DataParallelTrainer(print, run_config=config).run_config is config


def test_dicts_become_the_configurations_of_a_search() -> None:
    config = RunConfig(checkpoint_config={"checkpoint_frequency": 3}, failure_config={"fail_fast": True})
    assert config.checkpoint_config == CheckpointConfig(checkpoint_frequency=3)
    assert config.failure_config == FailureConfig(fail_fast=True)


def test_configurations_of_a_run_are_taken_as_they_are() -> None:
    checkpoints, failures = train.CheckpointConfig(num_to_keep=1), train.FailureConfig(max_failures=2)
    config = RunConfig(checkpoint_config=checkpoints, failure_config=failures)
    assert (config.checkpoint_config, config.failure_config) == (checkpoints, failures)


def test_a_changed_copy_has_the_rest() -> None:
    config = RunConfig(name="search", stop={"loss": 1.0}, verbose=2)
    copy = dataclasses.replace(config, name="trial_00001")
    assert (copy.name, copy.stop, copy.verbose, type(copy)) == ("trial_00001", {"loss": 1.0}, 2, RunConfig)


@pytest.mark.parametrize(
    "stop", [None, {"training_iteration": 3}, lambda trial_id, result: True, MaximumIterationStopper(3)]
)
def test_ways_to_say_when_trials_stop(stop: Any) -> None:
    assert RunConfig(stop=stop).stop is stop


def test_arguments_without_a_name_are_those_of_ray_in_its_order() -> None:
    checkpoints = CheckpointConfig(2, "loss", "min", 5, True)
    assert (checkpoints.checkpoint_frequency, checkpoints.checkpoint_at_end) == (5, True)
    assert FailureConfig(0, "raise").fail_fast == "raise"
    with pytest.raises(TypeError, match="positional"):
        train.CheckpointConfig(2, "loss", "min", 5)  # type: ignore[misc]
    with pytest.raises(TypeError, match="positional"):
        train.FailureConfig(3, -1)  # type: ignore[misc]
    restoring = [*inspect.signature(Tuner.restore).parameters]
    assert restoring[2:7] == [
        "resume_unfinished",
        "resume_errored",
        "restart_errored",
        "param_space",
        "storage_filesystem",
    ]


def test_a_run_itself_still_has_no_such_arguments() -> None:
    with pytest.raises(DeprecationWarning, match="no longer has the argument 'stop'"):
        train.RunConfig(stop={"loss": 1})  # type: ignore[call-arg]
    with pytest.raises(DeprecationWarning, match="no longer has the argument 'fail_fast'"):
        train.FailureConfig(fail_fast=True)  # type: ignore[call-arg]


@pytest.mark.parametrize(
    ("kind", "arguments", "told"),
    [
        (RunConfig, {"stop": 3}, "stop=3"),
        (RunConfig, {"stop": MaximumIterationStopper}, "is a class"),
        (RunConfig, {"verbose": 4}, "verbose=4 is not 0, 1, 2, 3 or None"),
        (RunConfig, {"verbose": True}, "verbose=True is not"),
        (RunConfig, {"checkpoint_config": 3}, "checkpoint_config=3"),
        (FailureConfig, {"fail_fast": "loudly"}, "fail_fast='loudly' is not True, False or 'raise'"),
        (FailureConfig, {"fail_fast": True, "max_failures": 1}, "contradict each other"),
        (FailureConfig, {"max_failures": -2}, "max_failures=-2"),
        (CheckpointConfig, {"checkpoint_frequency": -1}, "checkpoint_frequency=-1 is not a whole number"),
        (CheckpointConfig, {"checkpoint_frequency": 1.5}, "checkpoint_frequency=1.5"),
        (CheckpointConfig, {"checkpoint_at_end": "yes"}, "checkpoint_at_end='yes' is not True, False or None"),
        (CheckpointConfig, {"num_to_keep": 0}, "num_to_keep=0"),
    ],
)
def test_wrong_values_are_refused(kind: Any, arguments: dict[str, Any], told: str) -> None:
    with pytest.raises(ValueError, match=told):
        kind(**arguments)


def test_unknown_arguments_are_named_with_those_that_exist() -> None:
    with pytest.raises(TypeError, match=r"RunConfig has no argument 'stopp': it has name, .*stop"):
        RunConfig(stopp=3)  # type: ignore[call-arg]


@pytest.mark.parametrize("arguments", [{"progress_reporter": 1}, {"sync_config": 1}, {"log_to_file": "out.txt"}])
def test_what_has_no_effect_says_so(arguments: dict[str, Any]) -> None:
    with pytest.warns(UserWarning, match="has no effect here"):
        RunConfig(**arguments)
