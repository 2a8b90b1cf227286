"""Functions as trials, and what a trial may call."""

import functools
import threading

import pytest

from paceline import train
from paceline.train import RunConfig
from paceline.tune import Tuner
from paceline.tune import session as tune
from paceline.tune.config import CheckpointConfig
from paceline.tune.result import DEFAULT_METRIC
from paceline.tune.trainables.trainable import Trainable
from paceline.tune.trainables.trainable_plans import make_trainable_plan
from paceline.tune.trainables.wrapping import with_parameters, with_resources


def reports(config):
    for step in range(3):
        tune.report({"score": config["a"] * step})
    return {"score": 7}


def yields(config):
    for step in range(3):
        yield {"score": config["a"] * step}


def returns(config):
    return {"score": config["a"] * 2}


class Returns:
    def __call__(self, config):
        return returns(config)


@pytest.mark.parametrize(
    ("trainable", "scores", "returned"),
    [
        (reports, [0, 2, 4], {"score": 7}),
        (yields, [0, 2, 4], None),
        (returns, [4], {"score": 4}),
        (Returns(), [4], {"score": 4}),
        (Returns().__call__, [4], {"score": 4}),
        (functools.partial(lambda b, config: {"score": b + config["a"]}, 2), [4], {"score": 4}),
    ],
    ids=["reports", "yields", "returns", "object", "method", "partial"],
)
def test_what_a_function_reports_yields_or_else_returns_is_its_result(run_trial, trainable, scores, returned):
    result = run_trial(trainable, {"a": 2})
    assert [*result.metrics_dataframe["score"]] == scores
    assert (result.metrics, result.return_value) == ({"score": scores[-1]}, returned)


def test_a_number_that_a_function_returns_is_the_default_metric(run_trial):
    assert run_trial(lambda config: 2.5).metrics == {DEFAULT_METRIC: 2.5}


def test_a_trial_knows_which_it_is(run_trial, tmp_path):
    def train(config):
        context = tune.get_context()
        names = [context.get_trial_id(), context.get_trial_name(), context.get_trial_dir()]
        needs = context.get_trial_resources()
        resources = [needs["CPU"], needs.required_resources, needs.bundles]
        return {"names": [*names, context.get_experiment_name()], "resources": resources}

    metrics = run_trial(with_resources(train, {"cpu": 2}), number=12).metrics
    assert metrics == {
        "names": ["00012", "trial_00012", str(tmp_path / "search" / "trial_00012"), "search"],
        "resources": [2.0, {"CPU": 2.0, "GPU": 0.0}, [{"CPU": 2.0, "GPU": 0.0}]],
    }
    run_config = RunConfig(name="trial_00012-2", storage_path=tmp_path)
    later_life = make_trainable_plan(train).make_trainer({}, run_config, None).fit()
    assert later_life.metrics["names"][0] == "00012"


def test_a_function_travels_as_it_is_when_the_plan_is_made_and_is_a_trial_only_in_one(of_trial, tmp_path):
    scale = [1]
    plan = make_trainable_plan(lambda config: {"scale": scale[0]})
    scale[0] = 2
    assert plan.make_trainer({}, of_trial(), None).fit().metrics == {"scale": 1}
    run_config = RunConfig(name="run", storage_path=tmp_path)
    trainer = train.DataParallelTrainer(lambda: tune.report({"a": 1}), run_config=run_config)
    with pytest.raises(train.TrainingFailedError, match="cannot be used in the run run, which is not a trial"):
        trainer.fit()
    for call in (lambda: tune.report({"a": 1}), tune.get_checkpoint, tune.get_context):
        with pytest.raises(RuntimeError, match="cannot be used outside of a trial"):
            call()


def no_argument(): ...
def two_arguments(config, data): ...


class NotTrainable:
    pass


class NoStep(Trainable):
    pass


@pytest.mark.parametrize(
    ("trainable", "message"),
    [
        (no_argument, r"no_argument must take the trial's configuration .*\n\nhint: def no_argument\(config\)"),
        (two_arguments, r"needs data besides the trial's configuration\n\nhint: use tune.with_parameters\(two_argu"),
        ("train", "no trainable is registered as 'train'"),
        (NotTrainable, "trainable must be .*NotTrainable'>"),
        (Trainable, "trainable must be .*Trainable'>"),
        (NoStep, r"NoStep must implement step\(\)"),
        (train.DataParallelTrainer, "trainable must be .* a trainer such as .*, got <class"),
    ],
)
def test_what_cannot_be_run_is_refused_at_once(trainable, message):
    with pytest.raises(ValueError, match=message):
        make_trainable_plan(trainable)


def test_a_function_makes_its_checkpoints_itself_is_not_detached_and_is_sent_to_workers(of_trial):
    with pytest.raises(ValueError, match=r"needs a tune.Trainable, and no_op is a function"):
        make_trainable_plan(no_op).check(of_trial(checkpoint_config=CheckpointConfig(checkpoint_frequency=2)))
    with pytest.raises(ValueError, match="detached=True"):
        Tuner(no_op, run_config=of_trial(engine="ray", detached=True))
    lock = threading.Lock()

    def trial(config):
        lock.acquire()

    with pytest.raises(TypeError, match=r"lock.*cannot be sent to the workers.*\n\nhint: .* inside trial"):
        make_trainable_plan(trial)


def no_op(config): ...


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: with_parameters(no_op, data=1), "argument 'data'; the arguments of no_op besides config are none"),
        (lambda: with_parameters(two_arguments, dato=1), "argument 'dato'; .* two_arguments besides config are data"),
        (lambda: with_parameters(with_parameters(two_arguments, data=1), data=2), "already used on two_arguments"),
        (lambda: with_parameters(3, data=1), "trainable must be a function or a subclass of tune.Trainable, got 3"),
        (lambda: with_resources(train.DataParallelTrainer(no_argument), {"cpu": 1}), "hint: pass a scaling_config"),
        (lambda: with_parameters(train.DataParallelTrainer(no_argument), data=1), "hint: pass objects to the trainer"),
    ],
)
def test_wrong_use_of_wrappers_is_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()
