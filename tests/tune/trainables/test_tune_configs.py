"""The configurations of a search, and what a trial is to have, however it was said."""

import dataclasses
import inspect
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline import train
from paceline._core.resource_planner import ResourceBundle
from paceline.train import DataParallelTrainer, ScalingConfig
from paceline.tune.config import CheckpointConfig, FailureConfig, RunConfig
from paceline.tune.error import TuneError
from paceline.tune.space.domains import sample_from
from paceline.tune.stopper import MaximumIterationStopper
from paceline.tune.trainables.resources import PlacementGroupFactory
from paceline.tune.trainables.trainable_plans import make_trainable_plan
from paceline.tune.trainables.wrapping import with_resources
from paceline.tune.tuner import Tuner


def test_they_are_configurations_of_a_run_from_dicts_or_as_they_are(tmp_path):
    config = RunConfig(checkpoint_config={"checkpoint_frequency": 3}, failure_config={"fail_fast": True})
    assert isinstance(config, train.RunConfig)
    assert config.checkpoint_config == CheckpointConfig(checkpoint_frequency=3)
    assert config.failure_config == FailureConfig(fail_fast=True)
    checkpoints, failures = train.CheckpointConfig(num_to_keep=1), train.FailureConfig(max_failures=2)
    config = RunConfig(storage_path=tmp_path, checkpoint_config=checkpoints, failure_config=failures, verbose=2)
    assert (config.checkpoint_config, config.failure_config) == (checkpoints, failures)
    assert train.DataParallelTrainer(print, run_config=config).run_config is config
    copy = dataclasses.replace(config, name="trial_00001", stop={"loss": 1.0})
    assert (copy.name, copy.stop, copy.verbose, type(copy)) == ("trial_00001", {"loss": 1.0}, 2, RunConfig)


def test_arguments_without_a_name_are_those_of_ray_in_its_order():
    checkpoints = CheckpointConfig(2, "loss", "min", 5, True)
    assert (checkpoints.checkpoint_frequency, checkpoints.checkpoint_at_end) == (5, True)
    assert FailureConfig(0, "raise").fail_fast == "raise"
    with pytest.raises(TypeError, match="positional"):
        train.FailureConfig(0, False, -1)
    restoring = [*inspect.signature(Tuner.restore).parameters][2:7]
    assert restoring == ["resume_unfinished", "resume_errored", "restart_errored", "param_space", "storage_filesystem"]
    with pytest.raises(TypeError, match=r"RunConfig\(\) has no argument 'stopp'; it has name, .*stop"):
        RunConfig(stopp=3)
    with pytest.warns(UserWarning, match="has no effect here"):
        RunConfig(sync_config={"sync_period": 1})


@pytest.mark.parametrize(
    ("kind", "arguments", "message"),
    [
        (RunConfig, {"stop": MaximumIterationStopper}, "got the class MaximumIterationStopper"),
        (RunConfig, {"verbose": 4}, "verbose must be 0, 1, 2, 3, True, False or None, got 4"),
        (FailureConfig, {"fail_fast": "loudly"}, "fail_fast must be True, False or 'raise', got 'loudly'"),
        (FailureConfig, {"fail_fast": True, "max_failures": 1}, "contradict each other"),
        (CheckpointConfig, {"checkpoint_frequency": -1}, "checkpoint_frequency must be .* or None, got -1"),
        (CheckpointConfig, {"checkpoint_at_end": "yes"}, "checkpoint_at_end must be True, False or None, got 'yes'"),
    ],
)
def test_wrong_values_are_refused(kind, arguments, message):
    with pytest.raises(ValueError, match=message):
        kind(**arguments)


def never_run(config):
    raise AssertionError("never run")


def bundles(resources, config=None):
    return make_trainable_plan(with_resources(never_run, resources)).resolve_needs(config or {}).bundles


def test_a_function_needs_one_cpu_by_default():
    needs = make_trainable_plan(never_run).resolve_needs({})
    assert (needs.bundles, needs.is_explicit) == ((ResourceBundle(1.0),), False)
    assert make_trainable_plan(with_resources(never_run, {"cpu": 1})).resolve_needs({}).is_explicit
    factory = PlacementGroupFactory([{}, {"CPU": 1, "GPU": 0.5}, {"CPU": 2}])
    assert factory.required_resources == {"CPU": 3.0, "GPU": 0.5}
    assert (factory.head_bundle_is_empty, factory.head_cpus) == (True, 0.0)
    plan = make_trainable_plan(with_resources(never_run, lambda config: config["wanted"]))
    with pytest.raises(ValueError, match=r"\(config\) must be a dict .*, got 7"):
        plan.resolve_needs({"wanted": 7})


@pytest.mark.parametrize(
    "resources",
    [
        {"CPU": 4, "GPU": 2},
        {"Cpu": 4, "gPu": 2},
        PlacementGroupFactory([{"CPU": 1}, {"CPU": 1.5, "GPU": 1}, {"CPU": 1.5, "GPU": 1}]),
        ScalingConfig(num_workers=2, use_gpu=True, resources_per_worker={"CPU": 2, "GPU": 1}),
        lambda config: {"cpu": config["n"], "gpu": 2},
        lambda config: PlacementGroupFactory([{"CPU": config["n"], "GPU": 2}]),
    ],
    ids=["dict", "any case", "bundles", "workers", "function of a dict", "function of bundles"],
)
def test_the_process_of_a_trial_has_all_requested_resources(resources):
    assert bundles(resources, {"n": 4}) == (ResourceBundle(4.0, 2.0),)


def test_the_worker_gets_what_its_trial_needs(of_trial):
    plan = make_trainable_plan(with_resources(never_run, {"cpu": 2, "gpu": 0.5, "License": 1}))
    scaling = plan.make_trainer({}, of_trial(), None).scaling_config
    assert (scaling.num_workers, scaling.num_cpus_per_worker, scaling.num_gpus_per_worker) == (1, 2.0, 0.5)
    assert scaling.additional_resources_per_worker == {"License": 1.0}
    one = ScalingConfig(use_gpu=True, accelerator_type="A100", resources_per_worker={"CPU": 3, "GPU": 1})
    assert make_trainable_plan(with_resources(never_run, one)).make_trainer({}, of_trial(), None).scaling_config is one


amounts = st.sampled_from([0.0, 0.25, 0.5, 1.0, 2.0, 3.0])


@given(st.lists(st.fixed_dictionaries({"CPU": amounts, "GPU": amounts, "x": amounts}), min_size=1, max_size=5))
def test_no_bundle_is_lost_in_the_sum(asked):
    (bundle,) = bundles(PlacementGroupFactory(asked))
    assert bundle.num_cpus == pytest.approx(sum(each["CPU"] for each in asked))
    num_gpus = sum(each["GPU"] for each in asked)
    # More than one GPU is a number of whole ones.
    assert num_gpus <= bundle.num_gpus < num_gpus + 1
    assert bundle.num_gpus <= 1 or bundle.num_gpus.is_integer()
    assert dict(bundle.others).get("x", 0.0) == pytest.approx(sum(each["x"] for each in asked))


@pytest.mark.parametrize(
    ("resources", "message"),
    [
        (lambda: 2, "resources must be a dict such as"),
        (lambda: {"cpu": -1}, "resources['cpu'] must be a non-negative number, got -1"),
        (lambda: {"cpu": True}, "resources['cpu'] must be a non-negative number, got True"),
        (lambda: {"gpu": 1.5}, "resources['gpu'] must be below 1 or an integer, got 1.5"),
        (lambda: {"cpu": 1, "CPU": 2}, "has CPU twice"),
        (lambda: {"gpu": 0.00001}, "must be 0 or at least 0.0001"),
        (lambda: {"cpus": 2}, "unknown resource 'cpus' in resources\n\nhint: use 'cpu'"),
        (lambda: {"num_workers": 2}, "hint: use a ScalingConfig in place of the dict"),
        (lambda: {3: 1}, "a key of resources must be the name of a resource, got 3"),
        (lambda: ScalingConfig(num_workers=0), "with at least one worker"),
        (lambda: PlacementGroupFactory([]), "bundles must be at least one dict"),
        (lambda: PlacementGroupFactory({"CPU": 1}), "bundles must be a list of dicts"),
        (lambda: PlacementGroupFactory([{"CPU": 1}, 3]), "bundles[1] must be a dict such as"),
        (lambda: PlacementGroupFactory([{"CPU": 1}], "ANYWHERE"), "strategy must be 'PACK', 'SPREAD'"),
    ],
)
def test_wrong_resources_are_refused_at_once(resources, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        with_resources(never_run, resources())


def test_wrong_calls_and_functions_for_resources_say_what_is_allowed(tmp_path):
    with pytest.raises(TypeError, match=r"got cpu by name\n\nhint: use with_resources\(never_run, \{'cpu': 3\}\)"):
        with_resources(never_run, cpu=3)
    with pytest.raises(ValueError, match=r"<lambda>\(config\) raised KeyError: 'b'; config is \{'a': 1\}"):
        make_trainable_plan(with_resources(never_run, lambda config: {"cpu": config["b"]})).resolve_needs({"a": 1})
    tuner = Tuner(with_resources(never_run, {"cpu": 9999}), run_config=RunConfig(storage_path=tmp_path))
    with pytest.raises(ValueError, match=r"needs 9999 cores.*\n\nhint: lower what tune.with_resources\(\)"):
        tuner.fit()


@pytest.mark.parametrize(
    ("trainable", "space", "error", "message"),
    [
        (never_run, {"a": (n for n in ())}, TypeError, r"param_space\['a'\] \(generator\) cannot be sent"),
        (DataParallelTrainer(never_run), {"lr": 1}, ValueError, "unknown argument 'lr' in param_space"),
        (never_run, {"a": sample_from(lambda its: its.config.b)}, TuneError, r"unknown name 'b'.*sample_from.*\['a'\]"),
    ],
    ids=["unpicklable", "argument", "sampling"],
)
def test_a_space_that_no_trial_could_use_ends_the_search_before_any_begins(tmp_path, trainable, space, error, message):
    with pytest.raises(error, match=message):
        Tuner(trainable, param_space=space, run_config=RunConfig(storage_path=tmp_path, name="search")).fit()
    assert not [*tmp_path.glob("search/trial_*")]
