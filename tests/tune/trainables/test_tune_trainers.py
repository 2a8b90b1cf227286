"""Trainers as trials: a trial's configuration merged into a copy; and a trainer in a search."""

import numpy as np
import pandas as pd
import pytest

from paceline import data, train, tune
from paceline._core.resource_planner import ResourceBundle
from paceline.train import DataParallelTrainer, RunConfig, ScalingConfig
from paceline.train.checkpoint import Checkpoint
from paceline.train.older.trainer import Trainer
from paceline.tune.trainables.trainable_plans import make_trainable_plan


def reports_config(config):
    train.report({"config": config, "workers": train.get_context().get_world_size()})


def test_a_config_is_merged_over_the_trainers_own_and_all_else_is_kept(of_trial, tmp_path):
    own = {"lr": 0.1, "optimizer": {"name": "sgd", "momentum": 0.9}, "epochs": 1}
    trainer = DataParallelTrainer(reports_config, train_loop_config=own)
    plan = make_trainable_plan(trainer)
    config = {"train_loop_config": {"lr": 0.5, "optimizer": {"momentum": 0.5}}}
    result = plan.make_trainer(config, of_trial(), None).fit()
    assert result.metrics is not None
    assert result.metrics["config"] == {"lr": 0.5, "optimizer": {"name": "sgd", "momentum": 0.5}, "epochs": 1}
    assert trainer.train_loop_config == {"lr": 0.1, "optimizer": {"name": "sgd", "momentum": 0.9}, "epochs": 1}

    def sums():
        total = sum(int(batch["id"].sum()) for batch in train.get_dataset_shard("train").iter_batches())
        train.report({"total": total})

    trainer = DataParallelTrainer(sums, datasets={"train": data.range(10)}, run_config=RunConfig(name="own"))
    plan = make_trainable_plan(trainer)
    assert plan.make_trainer({}, of_trial(1), None).fit().metrics == {"total": 45}
    assert trainer.run_config.name == "own"
    of_trainer, of_the_trial = Checkpoint(str(tmp_path / "a")), Checkpoint(str(tmp_path / "b"))
    plan = make_trainable_plan(DataParallelTrainer(print, resume_from_checkpoint=of_trainer))
    assert plan.make_trainer({}, of_trial(), None).resume_from_checkpoint is of_trainer
    assert plan.make_trainer({}, of_trial(), of_the_trial).resume_from_checkpoint is of_the_trial


@pytest.mark.parametrize("scaling", [{"num_workers": 2}, ScalingConfig(num_workers=2)])
def test_the_number_of_workers_is_a_trials_to_choose(of_trial, scaling):
    trainer = DataParallelTrainer(reports_config, scaling_config=ScalingConfig(resources_per_worker={"CPU": 0.5}))
    plan = make_trainable_plan(trainer)
    made = plan.make_trainer({"scaling_config": scaling}, of_trial(), None)
    per_worker = 0.5 if isinstance(scaling, dict) else 1.0
    assert (made.scaling_config.num_workers, made.scaling_config.num_cpus_per_worker) == (2, per_worker)
    assert plan.resolve_needs({"scaling_config": scaling}).bundles == (ResourceBundle(per_worker),) * 2
    assert trainer.scaling_config.num_workers == 1


def test_a_search_draws_from_the_domains_in_a_scaling_config_and_merges_those_for_the_loop(tmp_path):
    amount = {"CPU": tune.choice([0.5])}
    searched = ScalingConfig(num_workers=tune.grid_search([1, 2]), resources_per_worker=amount)
    tuner = tune.Tuner(
        DataParallelTrainer(reports_config, train_loop_config={"base": 100}),
        param_space={"scaling_config": searched, "train_loop_config": {"x": tune.grid_search([1, 5])}},
        run_config=RunConfig(name="search", storage_path=tmp_path),
    )
    results = tuner.fit()
    assert [result.metrics["workers"] for result in results] == [1, 1, 2, 2]
    assert [result.metrics["config"] for result in results] == [{"base": 100, "x": x} for x in (1, 5)] * 2
    assert {result.config["scaling_config"]["resources_per_worker"]["CPU"] for result in results} == {0.5}
    for refused in (searched, ScalingConfig(resources_per_worker=amount), ScalingConfig(use_gpu=tune.choice([True]))):
        with pytest.raises(ValueError, match="must have no domains outside of a search"):
            DataParallelTrainer(reports_config, scaling_config=refused)
        with pytest.raises(ValueError, match="must have no domains"):
            make_trainable_plan(tune.with_resources(reports_config, refused)).resolve_needs({})


@pytest.mark.parametrize(
    ("scaling", "needs"),
    [
        (None, ((ResourceBundle(1.0),), False)),
        (ScalingConfig(3), ((ResourceBundle(1.0),) * 3, False)),
        (ScalingConfig(2, use_gpu=True), ((ResourceBundle(0.0, 1.0),) * 2, False)),
        (ScalingConfig(2, resources_per_worker={"CPU": 2, "x": 1}), ((ResourceBundle(2, 0, (("x", 1.0),)),) * 2, True)),
    ],
)
def test_what_the_workers_need_is_what_the_trial_needs(scaling, needs):
    found = make_trainable_plan(DataParallelTrainer(reports_config, scaling_config=scaling)).resolve_needs({})
    assert (found.bundles, found.is_explicit) == needs


class UserTrainer(DataParallelTrainer):
    """With a constructor of its own, as in a user's script."""

    num_constructed = 0

    def __init__(self, factor, *, offset=0, **others):
        type(self).num_constructed += 1
        self.datasets = None  # Some set attributes before the base class does.
        super().__init__(reports_config, train_loop_config={"value": factor + offset}, **others)
        self.offset = offset


class VariedUserTrainer(UserTrainer):
    """Lets a search vary its own argument, too."""

    def replace_arguments(self, *, factor=None, **changes):
        if factor is not None:
            changes["train_loop_config"] = {"value": factor + self.offset}
        return super().replace_arguments(**changes)


def test_a_users_trainer_is_copied_without_its_constructor_and_says_what_a_search_varies(of_trial):
    trainer = UserTrainer(3, offset=1, scaling_config={"num_workers": 2})
    num_constructed = UserTrainer.num_constructed
    copy = make_trainable_plan(trainer).make_trainer({"train_loop_config": {"more": 1}}, of_trial(), None)
    assert isinstance(copy, UserTrainer)
    assert UserTrainer.num_constructed == num_constructed
    assert (copy.train_loop_config, copy.scaling_config.num_workers) == ({"value": 4, "more": 1}, 2)
    assert (copy.offset, copy.run_config.name) == (1, "trial_00000")
    assert trainer.train_loop_config == {"value": 4}
    copy = make_trainable_plan(VariedUserTrainer(3, offset=1)).make_trainer({"factor": 5}, of_trial(), None)
    assert copy.train_loop_config == {"value": 6}
    with pytest.raises(TypeError, match="UserTrainer cannot replace its argument 'factor'"):
        make_trainable_plan(UserTrainer(3)).make_trainer({"factor": 5}, of_trial(), None)


def test_assigning_to_an_attribute_of_a_trainer_replaces_its_arguments():
    trainer = DataParallelTrainer(reports_config)
    before = trainer.trainer_arguments
    trainer.scaling_config = {"num_workers": 3}
    assert trainer.trainer_arguments.scaling_config == ScalingConfig(3)
    assert before.scaling_config == ScalingConfig(1)
    with pytest.raises(ValueError, match="train_loop_config must be a dict or None, got 3"):
        trainer.train_loop_config = 3


def test_the_trainer_of_ray_1_is_copied_with_its_configurations(of_trial, tmp_path):
    plan = make_trainable_plan(Trainer(reports_config, num_workers=2, logdir=tmp_path / "own", max_retries=5))
    copy = plan.make_trainer({"train_loop_config": {"a": 1}}, of_trial(), None)
    assert (copy.scaling_config.num_workers, copy.run_config.name) == (2, "trial_00000")


def test_trees_have_their_parameters_merged(of_trial):
    lightgbm_of_train = pytest.importorskip("paceline.train.lightgbm")
    rows = np.arange(200, dtype=float)
    trainer = lightgbm_of_train.LightGBMTrainer(
        datasets={"train": data.from_pandas(pd.DataFrame({"x": rows, "y": rows % 2}))},
        label_column="y",
        params={"objective": "binary", "num_leaves": 4, "verbosity": -1},
        num_boost_round=4,
    )
    plan = make_trainable_plan(trainer)
    made = plan.make_trainer({"params": {"num_leaves": 8}, "num_boost_round": 2}, of_trial(), None)
    assert made.boosting_spec.params == {"objective": "binary", "num_leaves": 8, "verbosity": -1}
    assert trainer.boosting_spec.params["num_leaves"] == 4
    with pytest.raises(TypeError, match="takes no argument 'depth'"):
        plan.make_trainer({"depth": 3}, of_trial(), None)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (
            {"lr": 0.1},
            r"unknown argument 'lr' in param_space; the arguments of DataParallelTrainer are .*train_loop_config"
            r"(.|\n)*hint: .*'lr'",
        ),
        ({"run_config": {}}, "param_space cannot have 'run_config': each trial is stored in the search's directory"),
        ({"scaling_config": {"num_workers": 0}}, "num_workers must be at least 1 in a search, got 0"),
        ({"scaling_config": 3}, "scaling_config must be a paceline.train.ScalingConfig or a dict of its fields, got 3"),
        ({"train_loop_config": 3}, "train_loop_config must be a dict or None, got 3"),
    ],
)
def test_a_config_that_does_not_fit_is_refused(of_trial, config, message):
    plan = make_trainable_plan(DataParallelTrainer(reports_config, train_loop_config={"a": 1}))
    with pytest.raises(ValueError, match=message):
        plan.make_trainer(config, of_trial(), None)
    with pytest.raises(TypeError, match=r"ScalingConfig\(\) has no argument 'workers'; it has num_workers"):
        plan.resolve_needs({"scaling_config": {"workers": 2}})
