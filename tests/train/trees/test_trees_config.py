"""How XGBoost and LightGBM are set up, as far as that is decided without training."""

import sys

import pytest

from paceline._worker.main import _is_secondary
from paceline.train.lightgbm.config import _bind_free_port
from paceline.train.xgboost.config import make_communicator_args, note_lost_peer
from paceline.train.xgboost.model import collect_metrics, make_params


def test_a_communicator_is_made_with_what_the_tracker_says_and_names_that_sort_as_ranks_do():
    told = {"dmlc_tracker_uri": "10.0.0.1", "dmlc_tracker_port": 4711}
    ours = {"dmlc_communicator": "rabit", "dmlc_task_id": "00000003", "dmlc_timeout": 60}
    assert make_communicator_args(told, 3, 60) == {**told, **ours}


@pytest.mark.parametrize(
    ("params", "devices", "made"),
    [
        ({}, (), {"nthread": 4}),
        ({"n_jobs": 2}, (), {"n_jobs": 2}),
        ({"device": "cuda"}, (1,), {"nthread": 4, "device": "cuda:1"}),
        ({"device": "cpu"}, (1,), {"nthread": 4, "device": "cpu"}),
    ],
)
def test_threads_and_gpu_are_the_workers_own_where_the_caller_has_not_chosen(params, devices, made):
    assert make_params(params, 4, devices) == made


def test_the_newest_values_are_reported_by_set_and_metric():
    log = {"train": {"auc": [0.7, 0.8]}, "valid": {"auc": [0.6, 0.7], "logloss": [(0.5, 0.1), (0.4, 0.2)]}}
    logloss = {"valid-logloss-mean": 0.4, "valid-logloss-std": 0.2}
    assert collect_metrics(log) == {"train-auc": 0.8, "valid-auc": 0.7, **logloss}


class XGBoostError(ValueError):
    """Named as XGBoost's own."""


LOST = """[06:13:30] /workspace/src/collective/result.cc:83: [histogram.h:197|06:13:30]:

- [allreduce.cc:135|06:13:30]: Ring Allreduce failed.
- [allreduce.cc:101|06:13:30]: Ring scatter reduce failed, current iteration:0
- [socket.h:79|06:13:30]: Poll error condition:Success code:0
Stack trace:
  [bt] (0) libxgboost.so(+0x11031e) [0x7f543a91031e]"""
"""As XGBoost 3.2 says it."""


@pytest.mark.parametrize(
    ("error", "is_echo"),
    [
        (XGBoostError(LOST), True),
        (XGBoostError("[12:00] /workspace/src/collective/result.cc:78:\n- [loop.cc:9]: Broken pipe"), True),
        (XGBoostError("[12:00] /workspace/src/learner.cc:7:\nCheck failed: labels must be in [0, 1]"), False),
        (ValueError("a line\nof src/collective/ and more"), False),
    ],
)
def test_an_error_of_xgboost_that_tells_of_a_lost_peer_is_an_echo(error, is_echo):
    note_lost_peer(error)
    assert _is_secondary(error) is is_echo
    if str(error) == LOST:
        assert error.__notes__ == [
            "connection closed by peer: [socket.h:79|06:13:30]: Poll error condition:Success code:0"
        ]


def test_a_port_is_one_of_the_range_that_nobody_has():
    with _bind_free_port((20000, 32000)) as taken:
        port = taken.getsockname()[1]
        assert 20000 <= port <= 32000
        with pytest.raises(OSError, match="no free port among 1 tried"):
            _bind_free_port((port, port))
    with _bind_free_port((port, port)) as again:
        assert again.getsockname()[1] == port


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
