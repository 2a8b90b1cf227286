"""How LightGBM's workers find each other, and that a process may fork after it has imported LightGBM."""

import sys

import pytest

from paceline.train.lightgbm import LightGBMConfig
from paceline.train.lightgbm.config import _bind_free_port


def test_a_port_is_one_of_the_range_that_nobody_has():
    with _bind_free_port((20000, 32000)) as taken:
        port = taken.getsockname()[1]
        assert 20000 <= port <= 32000
        with pytest.raises(OSError, match="no free port among 1 tried"):
            _bind_free_port((port, port))
    with _bind_free_port((port, port)) as again:
        assert again.getsockname()[1] == port


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ({"tree_learner": "feature"}, "tree_learner must be 'data' or 'voting', got 'feature'"),
        ({"timeout_s": 0}, "timeout_s must be a positive number, got 0"),
        ({"ports": (1, 70000)}, r"ports must be .*, got \(1, 70000\)"),
    ],
)
def test_a_configuration_that_cannot_work_is_refused_by_name(arguments, named):
    with pytest.raises(ValueError, match=named):
        LightGBMConfig(**arguments)


THREADS = """
import importlib
import os

from paceline.train.lightgbm import LightGBMConfig

for name in LightGBMConfig.preload:
    importlib.import_module(name)
print(len(os.listdir("/proc/self/task")))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="threads are counted in /proc")
def test_what_workers_find_imported_has_started_no_thread(run_script):
    # The variables are those that the process which workers fork from is started with.
    quiet = {"PACELINE_PREWARM": "0", "OPENBLAS_NUM_THREADS": "1", "JE_ARROW_MALLOC_CONF": "background_thread:false"}
    ended = run_script(THREADS, env=quiet)
    assert (ended.returncode, ended.stdout.strip()) == (0, "1"), ended.stderr
