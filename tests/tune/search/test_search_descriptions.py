"""Built-in searchers and schedulers are described by their arguments, and created again from that."""

import inspect
import json

import pytest

from paceline import tune
from paceline.tune import schedulers
from paceline.tune.driver.search_description import _describe_component, _rebuild_component
from paceline.tune.search import BasicVariantGenerator, ConcurrencyLimiter, Repeater

POINTS = [{"x": 0.5}]
COMPONENTS = [
    schedulers.FIFOScheduler(),
    schedulers.ASHAScheduler("time_total_s", "loss", "min", 9, 2, 3, 2, False),
    schedulers.HyperBandForBOHB("time_total_s", "loss", "min", 9, 2, False),
    schedulers.MedianStoppingRule("training_iteration", "loss", "min", 5, 4, 1, False),
    schedulers.PopulationBasedTraining(
        "training_iteration", "loss", "max", 5, 4, {"x": tune.uniform(0, 1), "y": [1, 2]}, 0.5, 0.1, [2.0, 0.5], seed=3
    ),
    schedulers.PB2("training_iteration", "loss", "max", 5, {"x": [0, 1]}, 0.5, False, False, True, seed=3),
    schedulers.PopulationBasedTrainingReplay([(0, {"x": 1}), (4, {"x": 2})]),
    BasicVariantGenerator(POINTS, 2, True, 7),
    ConcurrencyLimiter(Repeater(BasicVariantGenerator(POINTS), 2, False), 4, True),
]


@pytest.mark.parametrize("component", COMPONENTS, ids=lambda component: type(component).__name__)
def test_a_component_created_from_its_description_has_the_same_arguments(component):
    description = json.loads(json.dumps(_describe_component(component)))
    again = _rebuild_component("search_alg", description, object)
    assert type(again) is type(component)
    for name in inspect.signature(type(component)).parameters:
        before, after = getattr(component, name), getattr(again, name)
        assert name == "searcher" or repr(after) == repr(before)
    assert json.loads(json.dumps(_describe_component(again))) == description


def test_defaults_are_not_part_of_a_description_and_one_with_a_function_is_its_class_alone():
    described = _describe_component(schedulers.ASHAScheduler(max_t=9))
    assert described["class"].endswith("AsyncHyperBandScheduler")
    assert described["arguments"] == {"max_t": {"plain": 9}}
    component = schedulers.PopulationBasedTraining(custom_explore_fn=lambda config: config)
    assert list(_describe_component(component)) == ["class"]
