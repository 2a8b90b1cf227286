"""What looks in `__main__` for the functions and classes of a script finds them in a worker."""

import sys
import types

import pytest

from paceline._worker.main import expose_script_globals

SCRIPT = """
import functools
import pickle
import sys

from paceline.train import DataParallelTrainer, RunConfig, ScalingConfig

FACTOR = 3


class Thing:
    def __init__(self, value):
        self.value = value * FACTOR


def function(config):
    there = pickle.loads(pickle.dumps(Thing(config["value"])))
    assert type(there) is Thing
    return there.value, sys.modules["__main__"].FACTOR, hasattr(sys.modules["__main__"], "nothing_of_that_name")


for each in (function, functools.partial(function)):
    def trainer():
        return DataParallelTrainer(
            each,
            train_loop_config={"value": 5},
            scaling_config=ScalingConfig(int(sys.argv[1])),
            run_config=RunConfig(storage_path="runs"),
        )

    print(trainer().fit().return_value)
    if sys.argv[1] != "0":
        with trainer() as standing:
            print(standing.run()[0])
"""


@pytest.mark.parametrize("num_workers", [0, 1])
def test_a_class_of_the_script_is_pickled_by_its_name(run_script, num_workers):
    ended = run_script(SCRIPT, str(num_workers))
    assert ended.returncode == 0, ended.stderr
    values = [line for line in ended.stdout.splitlines() if "15" in line]
    assert len(values) == (4 if num_workers else 2)
    assert all(line.strip("[]()").replace(")", "").split(", ") == ["15", "3", "False"] for line in values)


def test_a_function_of_a_module_changes_nothing(monkeypatch):
    main = types.ModuleType("__main__")
    monkeypatch.setitem(sys.modules, "__main__", main)
    expose_script_globals(test_a_function_of_a_module_changes_nothing)
    expose_script_globals(print)
    assert not hasattr(main, "__getattr__")
