"""`with_parameters`: objects in memory that all trials share."""

import gc
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from paceline._core.system import on_linux
from paceline.train import Result
from paceline.tune.trainables.plans import planned
from paceline.tune.trainables.wrapped import with_parameters, with_resources

Run = Callable[..., Result]

needs_linux = pytest.mark.skipif(not on_linux(), reason="elsewhere there is no memory that others can open")


@needs_linux
@pytest.mark.timeout(120)
def test_large_objects_cost_trials_neither_memory_nor_time(of_trial: Callable[..., Any]) -> None:
    def trial(config, data=None):  # type: ignore[no-untyped-def]  # by itself: the trials import nothing of this module
        total = float(data[:: 1 << 16].sum()) if data is not None else 0.0
        with open("/proc/self/status") as file:
            # What is this process's alone.
            private = next(int(line.split()[1]) << 10 for line in file if line.startswith("RssAnon:"))
        return {"total": total, "private": private}

    data = np.ones(300_000_000 // 8)
    small, large = planned(with_parameters(trial, data=None)), planned(with_parameters(trial, data=data))
    took: dict[str, list[float]] = {"small": [], "large": []}
    private: dict[str, list[int]] = {"small": [], "large": []}
    for number in range(8):
        for kind, plan in (("small", small), ("large", large))[number >= 3 :]:
            began = time.monotonic()
            metrics = plan.trainer({}, of_trial(number * 10 + (kind == "large")), None).fit().metrics
            took[kind].append(time.monotonic() - began)
            assert metrics is not None
            private[kind].append(metrics["private"])
    assert metrics["total"] == len(data[:: 1 << 16])
    assert max(private["large"]) - min(private["small"]) < 30_000_000
    # To pickle so much, or to copy it, takes longer than this on any machine.
    assert min(took["large"]) - min(took["small"]) < 0.1


def test_arrays_tables_and_frames_are_views_that_cannot_be_written_to(run_trial: Run) -> None:
    def trial(config: dict[str, Any], array: Any, table: Any, frame: Any, rest: Any) -> dict[str, Any]:
        column = frame["x"].to_numpy()
        return {
            "array": int(array.sum()),
            "table": table["x"].to_pylist(),
            "frame": int(frame["x"].sum()),
            "rest": rest,
            "writable": [array.flags.writeable, column.flags.writeable, table["x"].chunk(0).buffers()[1].is_mutable],
        }

    objects = {
        "array": np.arange(10),
        "table": pa.table({"x": [1, 2, 3]}),
        "frame": pd.DataFrame({"x": np.arange(5)}),
        "rest": {"a": [1, "two"]},
    }
    assert run_trial(with_parameters(trial, **objects)).metrics == {
        "array": 45,
        "table": [1, 2, 3],
        "frame": 10,
        "rest": {"a": [1, "two"]},
        "writable": [False, False, False],
    }


@pytest.mark.parametrize("array", [np.zeros(0), np.ones((0, 3)), np.ones((5, 4)).T, np.ones((6, 6))[::2, ::2]])
def test_arrays_of_any_layout_come_over(run_trial: Run, array: Any) -> None:
    def trial(config: dict[str, Any], array: Any) -> dict[str, Any]:
        return {"shape": [*array.shape], "sum": float(array.sum())}

    expected = {"shape": [*array.shape], "sum": float(array.sum())}
    assert run_trial(with_parameters(trial, array=array)).metrics == expected


def test_objects_are_as_they_were_when_they_were_given(run_trial: Run) -> None:
    data = np.zeros(3)
    wrapped = with_parameters(lambda config, data: {"sum": float(data.sum())}, data=data)
    data[:] = 7
    assert run_trial(wrapped).metrics == {"sum": 0.0}


def test_resources_and_objects_go_together_in_either_order(run_trial: Run) -> None:
    def trial(config: dict[str, Any], data: int) -> dict[str, int]:
        return {"data": data}

    for number, wrapped in enumerate(
        [
            with_resources(with_parameters(trial, data=1), {"cpu": 2}),
            with_parameters(with_resources(trial, {"cpu": 2}), data=1),
        ]
    ):
        assert planned(wrapped).needs({}).bundles[0].num_cpus == 2
        assert run_trial(wrapped, number=number).metrics == {"data": 1}
        assert wrapped({}) == {"data": 1}


def test_an_object_that_does_not_pickle_is_named() -> None:
    with pytest.raises(TypeError, match=r"with_parameters: data.*cannot be sent to the workers"):
        with_parameters(lambda config, data: None, data={"lock": threading.Lock()})


@needs_linux
def test_the_memory_goes_with_the_last_who_uses_it() -> None:
    def held() -> int:
        gc.collect()
        links = [os.path.realpath(link) for link in Path("/proc/self/fd").iterdir()]
        return sum("paceline-parameters" in link for link in links)

    before = held()
    wrapped = with_parameters(lambda config, data: None, data=np.ones(10))
    assert held() == before + 1
    del wrapped
    assert held() == before


KILLED = """
import os, signal, sys
import numpy as np
from paceline.tune import session as tune
from paceline.tune.config import RunConfig
from paceline.tune.trainables.plans import planned
from paceline.tune.trainables.wrapped import with_parameters

def trial(config, data):
    assert data.sum() == len(data)
    os.kill({victim}, signal.SIGKILL)
    tune.report({{"never": 1}})

plan = planned(with_parameters(trial, data=np.ones(1_000_000)))
plan.trainer({{"driver": os.getpid()}}, RunConfig(name="trial_00000", storage_path="search"), None).fit()
"""


@needs_linux
@pytest.mark.parametrize("victim", ["config['driver']", "os.getpid()"], ids=["driver", "worker"])
def test_a_kill_leaves_no_memory_behind(
    run_script: Callable[..., CompletedProcess[str]],
    processes_in: Callable[[Path], list[Any]],
    tmp_path: Path,
    victim: str,
) -> None:
    ended = run_script(KILLED.format(victim=victim))
    assert ended.returncode != 0
    deadline = time.monotonic() + 5
    while (left := processes_in(tmp_path)) and time.monotonic() < deadline:
        time.sleep(0.02)
    # Memory without a name goes with the last process that has it; in /dev/shm and /tmp there never is any.
    assert left == []


def test_elsewhere_the_objects_are_copied(run_script: Callable[..., CompletedProcess[str]]) -> None:
    source = KILLED.format(victim="0 or 2**22 + 1").replace("os.kill(", "print(")
    ended = run_script(source, env={"PACELINE_PORTABLE": "1"})
    assert ended.returncode == 0, ended.stderr
