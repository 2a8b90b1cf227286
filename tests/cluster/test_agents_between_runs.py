"""Agents stay for the next run of the same script, without any resources, and end if none comes."""

import os

import psutil
import pytest
import ray
from ray.util.placement_group import placement_group_table

from paceline import train
from paceline._engine.ray import idle_agents
from processes import wait_until


def describe_worker():
    train.report({"zygote": os.getppid(), "value": os.environ.get("PACELINE_TEST_VALUE")})


@pytest.fixture
def fit_again(fit):
    """Fits with another name each time, and returns what each rank reported."""
    names = (f"run-{number}" for number in range(100))

    def fit_again(function=describe_worker, num_workers=2, **options):
        result = fit(function, num_workers, name=next(names), **options)
        return [result.metrics_by_rank[rank] for rank in range(num_workers)]

    return fit_again


def test_the_next_run_forks_from_the_zygotes_of_the_last_one_which_hold_no_resources(fit_again):
    first = fit_again(strategy="STRICT_SPREAD")
    assert not [each for each in placement_group_table().values() if each["state"] != "REMOVED"]
    wait_until(lambda: ray.available_resources().get("CPU") == ray.cluster_resources()["CPU"])
    second = fit_again(strategy="STRICT_SPREAD")
    assert {each["zygote"] for each in first} == {each["zygote"] for each in second}
    assert len({each["zygote"] for each in first}) == 2, "one on each node"


@pytest.mark.slow
def test_a_run_that_differs_gets_agents_of_its_own(fit_again):
    first = fit_again(strategy="STRICT_SPREAD")
    environment = {"env_vars": {"PACELINE_TEST_VALUE": "7"}}
    second = fit_again(strategy="STRICT_SPREAD", worker_runtime_env=environment)
    assert [each["value"] for each in second] == ["7", "7"]
    assert not {each["zygote"] for each in first} & {each["zygote"] for each in second}
    third = fit_again(strategy="STRICT_SPREAD")
    assert [each["value"] for each in third] == [None, None]
    assert {each["zygote"] for each in first} == {each["zygote"] for each in third}


@pytest.mark.slow
def test_an_agent_that_was_killed_meanwhile_is_replaced(fit_again):
    (first,) = fit_again(num_workers=1)
    (idle,) = idle_agents.idle_agents._agents
    ray.kill(idle.actor)
    wait_until(lambda: not psutil.pid_exists(first["zygote"]))
    (second,) = fit_again(num_workers=1)
    assert second["zygote"] != first["zygote"]


def test_an_agent_that_no_run_takes_over_ends_with_its_zygote(fit_again, monkeypatch):
    monkeypatch.setattr(idle_agents, "IDLE_TIMEOUT_S", 0.1)
    (first,) = fit_again(num_workers=1)
    wait_until(lambda: not psutil.pid_exists(first["zygote"]))
    (second,) = fit_again(num_workers=1)
    assert second["zygote"] != first["zygote"]


@pytest.mark.slow
def test_a_run_that_fails_leaves_its_agents_to_the_next_one(fit_again):
    def fail():
        raise ValueError("planned")

    first = fit_again(strategy="STRICT_SPREAD")
    with pytest.raises(train.TrainingFailedError, match="planned"):
        fit_again(fail, strategy="STRICT_SPREAD")
    third = fit_again(strategy="STRICT_SPREAD")
    assert {each["zygote"] for each in first} == {each["zygote"] for each in third}
