"""`with_parameters`: objects in memory that all trials share."""

import gc
import os
import threading
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from paceline._core.system import is_linux
from paceline.tune.trainables.trainable_plans import make_trainable_plan
from paceline.tune.trainables.wrapping import with_parameters, with_resources
from processes import still_running

needs_linux = pytest.mark.skipif(not is_linux(), reason="elsewhere there is no memory that others can open")


@needs_linux
def test_large_objects_cost_trials_no_memory(run_trial):
    def trial(config, data):  # by itself: the trials import nothing of this module
        with open("/proc/self/status") as file:
            # What is this process's alone.
            private = next(int(line.split()[1]) << 10 for line in file if line.startswith("RssAnon:"))
        return {"total": float(data[:: 1 << 16].sum()), "private": private}

    data = np.ones(300_000_000 // 8)
    small = run_trial(with_parameters(trial, data=np.ones(1)), number=0).metrics
    large = run_trial(with_parameters(trial, data=data), number=1).metrics
    assert large["total"] == len(data[:: 1 << 16])
    assert large["private"] - small["private"] < 30_000_000


def test_arrays_tables_and_frames_are_views_that_cannot_be_written_to(run_trial):
    def trial(config, array, table, frame, rest, layouts):
        column = frame["x"].to_numpy()
        return {
            "array": int(array.sum()),
            "table": table["x"].to_pylist(),
            "frame": int(frame["x"].sum()),
            "rest": rest,
            "layouts": [[*each.shape, float(each.sum())] for each in layouts],
            "writable": [array.flags.writeable, column.flags.writeable, table["x"].chunk(0).buffers()[1].is_mutable],
        }

    objects = {
        "array": np.arange(10),
        "table": pa.table({"x": [1, 2, 3]}),
        "frame": pd.DataFrame({"x": np.arange(5)}),
        "rest": {"a": [1, "two"]},
        "layouts": [np.zeros(0), np.ones((0, 3)), np.ones((5, 4)).T, np.ones((6, 6))[::2, ::2]],
    }
    wrapped = with_parameters(trial, **objects)
    objects["array"][:] = 7  # They are as they were when they were given.
    assert run_trial(wrapped).metrics == {
        "array": 45,
        "table": [1, 2, 3],
        "frame": 10,
        "rest": {"a": [1, "two"]},
        "layouts": [[0, 0.0], [0, 3, 0.0], [4, 5, 20.0], [3, 3, 9.0]],
        "writable": [False, False, False],
    }
    with pytest.raises(TypeError, match=r"with_parameters: data.*cannot be sent to the workers"):
        with_parameters(lambda config, data: None, data={"lock": threading.Lock()})


def test_resources_and_objects_go_together_in_either_order(run_trial):
    def trial(config, data):
        return {"data": data}

    one = with_resources(with_parameters(trial, data=1), {"cpu": 2})
    other = with_parameters(with_resources(trial, {"cpu": 2}), data=1)
    for number, wrapped in enumerate([one, other]):
        assert make_trainable_plan(wrapped).resolve_needs({}).bundles[0].num_cpus == 2
        assert run_trial(wrapped, number=number).metrics == {"data": 1}
        assert wrapped({}) == {"data": 1}


@needs_linux
def test_the_memory_goes_with_the_last_who_uses_it():
    def held():
        links = [os.path.realpath(link) for link in Path("/proc/self/fd").iterdir()]
        return sum("paceline-parameters" in link for link in links)

    gc.collect()
    before = held()
    wrapped = with_parameters(lambda config, data: None, data=np.ones(10))
    assert held() == before + 1
    del wrapped
    gc.collect()
    assert held() == before


KILLED = """
import os, signal, sys
import numpy as np
from paceline.tune import session as tune
from paceline.tune.config import RunConfig
from paceline.tune.trainables.trainable_plans import make_trainable_plan
from paceline.tune.trainables.wrapping import with_parameters

def trial(config, data):
    assert data.sum() == len(data)
    os.kill({victim}, signal.SIGKILL)
    tune.report({{"never": 1}})

plan = make_trainable_plan(with_parameters(trial, data=np.ones(1_000_000)))
plan.make_trainer({{"driver": os.getpid()}}, RunConfig(name="trial_00000", storage_path="search"), None).fit()
"""


@needs_linux
@pytest.mark.parametrize(
    "victim",
    [pytest.param("config['driver']", id="driver"), pytest.param("os.getpid()", id="worker", marks=pytest.mark.slow)],
)
def test_a_kill_leaves_no_memory_behind(run_script, processes_in, tmp_path, victim):
    ended = run_script(KILLED.format(victim=victim))
    assert ended.returncode != 0
    # Memory without a name goes with the last process that has it; in /dev/shm and /tmp there never is any.
    assert still_running(processes_in(tmp_path), within_s=60) == []


def test_elsewhere_the_objects_are_copied(run_script):
    source = KILLED.format(victim="0 or 2**22 + 1").replace("os.kill(", "print(")
    ended = run_script(source, env={"PACELINE_PORTABLE": "1"})
    assert ended.returncode == 0, ended.stderr
