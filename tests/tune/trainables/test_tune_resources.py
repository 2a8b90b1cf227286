"""What a trial is to have, however it was said."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline.train import ScalingConfig
from paceline.tune.trainables.planned import Bundle
from paceline.tune.trainables.plans import planned
from paceline.tune.trainables.resources import PlacementGroupFactory
from paceline.tune.trainables.wrapped import with_resources


def train(config: dict[str, Any]) -> None:
    raise AssertionError("never run")


def bundles(resources: Any, config: dict[str, Any] | None = None) -> tuple[Bundle, ...]:
    return planned(with_resources(train, resources)).needs(config or {}).bundles


def test_a_function_needs_one_cpu_and_nobody_said_so() -> None:
    needs = planned(train).needs({})
    assert (needs.bundles, needs.is_explicit) == ((Bundle(1.0),), False)


@pytest.mark.parametrize("names", [("cpu", "gpu"), ("CPU", "GPU"), ("Cpu", "gPu")])
def test_names_of_resources_may_be_in_any_case(names: tuple[str, str]) -> None:
    assert bundles({names[0]: 2, names[1]: 0.5, "License": 1}) == (Bundle(2.0, 0.5, (("License", 1.0),)),)


def test_what_was_asked_for_is_explicit() -> None:
    assert planned(with_resources(train, {"cpu": 1})).needs({}).is_explicit


@pytest.mark.parametrize(
    "resources",
    [
        {"CPU": 4, "GPU": 2},
        PlacementGroupFactory([{"CPU": 1}, {"CPU": 1.5, "GPU": 1}, {"CPU": 1.5, "GPU": 1}]),
        ScalingConfig(num_workers=2, use_gpu=True, resources_per_worker={"CPU": 2, "GPU": 1}),
        lambda config: {"cpu": config["n"], "gpu": 2},
        lambda config: PlacementGroupFactory([{"CPU": config["n"], "GPU": 2}]),
    ],
    ids=["dict", "bundles", "workers", "function of a dict", "function of bundles"],
)
def test_the_process_of_a_trial_has_all_that_was_asked_for(resources: Any) -> None:
    assert bundles(resources, {"n": 4}) == (Bundle(4.0, 2.0),)


def test_the_worker_gets_what_its_trial_needs(of_trial: Any) -> None:
    plan = planned(with_resources(train, {"cpu": 2, "gpu": 0.5, "License": 1}))
    scaling = plan.trainer({}, of_trial(), None).scaling_config
    assert (scaling.num_workers, scaling.num_cpus_per_worker, scaling.num_gpus_per_worker) == (1, 2.0, 0.5)
    assert scaling.additional_resources_per_worker == {"License": 1.0}


amounts = st.sampled_from([0.0, 0.25, 0.5, 1.0, 2.0, 3.0])


@given(st.lists(st.fixed_dictionaries({"CPU": amounts, "GPU": amounts, "x": amounts}), min_size=1, max_size=5))
def test_no_bundle_is_lost_in_the_sum(asked: list[dict[str, float]]) -> None:
    (bundle,) = bundles(PlacementGroupFactory(asked))
    assert bundle.num_cpus == pytest.approx(sum(each["CPU"] for each in asked))
    num_gpus = sum(each["GPU"] for each in asked)
    # More than one GPU is a number of whole ones.
    assert num_gpus <= bundle.num_gpus < num_gpus + 1
    assert bundle.num_gpus <= 1 or bundle.num_gpus.is_integer()
    assert dict(bundle.others).get("x", 0.0) == pytest.approx(sum(each["x"] for each in asked))


@pytest.mark.parametrize(
    ("resources", "told"),
    [
        (None, "resources=None is no resources"),
        (2, "resources=2 is no resources"),
        ({"cpu": -1}, r"resources\['cpu'\]=-1 is not a number of 0 or more"),
        ({"cpu": True}, r"resources\['cpu'\]=True is not a number"),
        ({"cpu": float("inf")}, r"resources\['cpu'\]=inf is not a number"),
        ({"gpu": 1.5}, r"resources\['gpu'\]=1.5 is neither below 1 nor a whole number"),
        ({"cpu": 1, "CPU": 2}, "has CPU twice"),
        ({"gpu": 0.00001}, "too little"),
        ({3: 1}, "has 3, which is not the name of a resource"),
        (ScalingConfig(num_workers=0), "has no worker"),
    ],
)
def test_wrong_resources_are_refused_at_once(resources: Any, told: str) -> None:
    with pytest.raises(ValueError, match=told):
        with_resources(train, resources)


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (([],), "asks for nothing"),
        (({"CPU": 1},), "is not a list of dicts"),
        (([{"CPU": 1}, 3],), r"bundles\[1\]=3 is not a dict"),
        (([{"CPU": 1}], "ANYWHERE"), "strategy='ANYWHERE' is not one of PACK"),
    ],
)
def test_wrong_bundles_are_refused(arguments: tuple[Any, ...], told: str) -> None:
    with pytest.raises(ValueError, match=told):
        PlacementGroupFactory(*arguments)


def test_what_a_function_returns_is_checked_where_it_is_known() -> None:
    plan = planned(with_resources(train, lambda config: config["wanted"]))
    with pytest.raises(ValueError, match=r"\(config\)=7 is no resources"):
        plan.needs({"wanted": 7})


def test_bundles_tell_what_they_need_together() -> None:
    factory = PlacementGroupFactory([{}, {"CPU": 1, "GPU": 0.5}, {"CPU": 2}])
    assert factory.required_resources == {"CPU": 3.0, "GPU": 0.5}
    assert (factory.head_bundle_is_empty, factory.head_cpus) == (True, 0.0)


def test_one_worker_is_taken_with_all_that_was_said_of_it(of_trial: Any) -> None:
    asked = ScalingConfig(use_gpu=True, accelerator_type="A100", resources_per_worker={"CPU": 3, "GPU": 1})
    assert planned(with_resources(train, asked)).trainer({}, of_trial(), None).scaling_config is asked
