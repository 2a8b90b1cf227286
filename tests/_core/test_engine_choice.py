"""Which engine is taken, and the reason that is told."""

import sys
import types

import pytest

import paceline
from paceline._core import engine_choice, system
from paceline._core.engine_choice import EngineChoice, choose_engine


@pytest.fixture(autouse=True)
def nothing_is_said(monkeypatch):
    for name in ("PACELINE_ENGINE", "RAY_ADDRESS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(engine_choice, "_init", EngineChoice(engine=""))
    monkeypatch.delitem(sys.modules, "ray", raising=False)


ADDRESS = {"RAY_ADDRESS": "10.0.0.1:6379"}
BOTH = {**ADDRESS, "PACELINE_ENGINE": "local"}
OTHER = ("ray", "10.0.0.2:6379")


@pytest.mark.parametrize(
    ("variables", "is_ray_initialised", "init", "asked", "expected"),
    [
        ({}, None, None, None, EngineChoice("local", "it is the default")),
        ({}, False, None, None, EngineChoice("local", "it is the default")),
        (ADDRESS, None, None, None, EngineChoice("ray", "RAY_ADDRESS=10.0.0.1:6379", "10.0.0.1:6379")),
        (ADDRESS, True, None, None, EngineChoice("ray", "Ray is initialised in this process")),
        (BOTH, True, None, None, EngineChoice("local", "PACELINE_ENGINE=local")),
        (BOTH, True, OTHER, None, EngineChoice("ray", "set by paceline.init()", "10.0.0.2:6379")),
        (BOTH, True, OTHER, "local", EngineChoice("local", "set by RunConfig(engine='local')", "10.0.0.2:6379")),
        # An address alone asks for Ray.
        ({}, None, (None, "auto"), None, EngineChoice("ray", "set by paceline.init()", "auto")),
    ],
)
def test_the_most_explicit_choice_wins(monkeypatch, variables, is_ray_initialised, init, asked, expected):
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    if is_ray_initialised is not None:
        ray = types.SimpleNamespace(is_initialized=lambda: is_ray_initialised)
        monkeypatch.setitem(sys.modules, "ray", ray)
    if init is not None:
        engine_choice.remember_init(*init, str)
    assert choose_engine(asked) == expected


def test_arguments_of_init_are_remembered_until_the_next_call():
    paceline.init(engine="local")
    assert choose_engine() == EngineChoice("local", "set by paceline.init()")
    paceline.init()
    assert choose_engine() == EngineChoice()


def test_a_run_inside_a_worker_stays_there(monkeypatch):
    monkeypatch.setenv("RAY_ADDRESS", "10.0.0.1:6379")
    monkeypatch.setattr(system, "in_worker", True)
    assert choose_engine().engine == "local"
    assert choose_engine("ray").engine == "ray"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"num_cpu": 4}, "unknown argument 'num_cpu'"),
        ({"engine": "ray", "num_gpus": 1}, "num_gpus is an option of Ray itself"),
        ({"engine": "slurm"}, "engine must be 'local', 'ray' or None, got 'slurm'"),
        ({"engine": "ray", "address": 6379}, "address must be the address of a cluster, such as"),
        ({"engine": "local", "address": "auto"}, "address must be None with engine='local', got 'auto'"),
    ],
)
def test_invalid_arguments_of_init_are_refused_and_not_remembered(arguments, message):
    with pytest.raises(TypeError if "num_cpu" in arguments else ValueError, match=message):
        paceline.init(**arguments)
    assert choose_engine().engine == "local"
    assert not paceline.is_initialized()


def test_a_wrong_variable_is_refused_by_name_and_without_ray_the_error_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ModuleNotFoundError, match=r'pip install "paceline\[ray\]"'):
        paceline.init(engine="ray")
    assert choose_engine().engine == "local"
    monkeypatch.setenv("PACELINE_ENGINE", "slurm")
    with pytest.raises(ValueError, match="PACELINE_ENGINE must be local or ray, got 'slurm'"):
        choose_engine()


def test_arguments_of_rays_init_are_accepted_and_shutdown_forgets_them():
    assert not paceline.is_initialized()
    paceline.init(num_cpus=4, ignore_reinit_error=True)
    assert paceline.is_initialized()
    assert choose_engine().engine == "local"
    paceline.shutdown()
    paceline.shutdown()
    assert not paceline.is_initialized()
