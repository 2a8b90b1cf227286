"""G11, argument by argument: what is nothing of the kind is refused where it is given, by the argument's name."""

import inspect
from collections.abc import Iterator
from typing import Any

import pytest

from paceline import data, train, tune
from paceline.train.jax import JaxConfig
from paceline.train.lightgbm import LightGBMConfig
from paceline.train.torch import TorchConfig
from paceline.tune import schedulers, search, stopper

NEEDED: dict[type, dict[str, Any]] = {
    train.ValidationConfig: {"fn": lambda checkpoint: {}},
    tune.PlacementGroupFactory: {"bundles": [{"CPU": 1}]},
    schedulers.PopulationBasedTraining: {"hyperparam_mutations": {"lr": [1, 2]}},
    schedulers.PB2: {"hyperparam_bounds": {"lr": [0, 1]}},
    search.ConcurrencyLimiter: {"searcher": search.BasicVariantGenerator(), "max_concurrent": 1},
    search.Repeater: {"searcher": search.BasicVariantGenerator()},
    stopper.ExperimentPlateauStopper: {"metric": "loss"},
    stopper.FunctionStopper: {"function": lambda trial_id, result: True},
    stopper.MaximumIterationStopper: {"max_iter": 1},
    stopper.TimeoutStopper: {"timeout": 1},
    stopper.TrialPlateauStopper: {"metric": "loss"},
}
"""Classes that have arguments without a default, and what is right for these."""

OTHERS: tuple[type, ...] = (
    *(train.CheckpointConfig, train.DataConfig, train.FailureConfig, train.RunConfig, train.ScalingConfig),
    *(train.ValidationTaskConfig, JaxConfig, LightGBMConfig, TorchConfig),
    *(tune.CheckpointConfig, tune.FailureConfig, tune.RunConfig, tune.TuneConfig),
    *(data.ExecutionOptions, data.ExecutionResources, search.BasicVariantGenerator),
    *(schedulers.ASHAScheduler, schedulers.HyperBandScheduler, schedulers.MedianStoppingRule),
)

TRUE_OR_FALSE = {
    *("enable_shard_locality", "hard_stop", "log_config", "preserve_order", "require_attrs", "stop_last_trials"),
    *("synch", "verbose_progress"),
}
"""Anything is true or false."""

WITHOUT_EFFECT = {"clock", "reuse_actors"}
"""Of tests, or taken for the sake of scripts that give them."""


class Odd:
    """Nothing that any argument could be."""


def list_arguments() -> Iterator[tuple[type, str]]:
    for cls in (*NEEDED, *OTHERS):
        for parameter in inspect.signature(cls).parameters.values():
            if parameter.kind is not parameter.VAR_KEYWORD:
                yield cls, parameter.name


@pytest.mark.filterwarnings("ignore:.*has no effect here")
@pytest.mark.parametrize(("cls", "argument"), [*list_arguments()], ids=lambda value: getattr(value, "__name__", value))
def test_a_value_of_no_valid_kind_is_refused_by_name(cls: type, argument: str) -> None:
    arguments = {**NEEDED.get(cls, {}), argument: Odd()}
    if argument in TRUE_OR_FALSE | WITHOUT_EFFECT:
        cls(**arguments)
        return
    with pytest.raises((ValueError, TypeError), match=argument):
        cls(**arguments)
