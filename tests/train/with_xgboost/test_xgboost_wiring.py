"""How XGBoost is called: pure decisions, and runs of two workers with a stand-in that learns nothing.

With XGBoost itself, if it is installed: `test_xgboost_training.py`.
"""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from paceline._worker.main import _is_echo
from paceline.train.xgboost import XGBoostConfig
from paceline.train.xgboost.boosting import parameters
from paceline.train.xgboost.callback import evaluated
from paceline.train.xgboost.config import communicator_arguments, note_lost_peer

STAND_IN = Path(__file__).parent / "xgboost_stand_in.py"


def test_ranks_are_given_in_the_order_of_task_names():
    names = [communicator_arguments({}, rank, 60)["dmlc_task_id"] for rank in (0, 2, 9, 10, 11, 100)]
    assert names == sorted(names)


def test_a_communicator_is_made_with_what_the_tracker_says():
    told = {"dmlc_tracker_uri": "10.0.0.1", "dmlc_tracker_port": 4711}
    assert communicator_arguments(told, 3, 60) == {
        **told,
        "dmlc_communicator": "rabit",
        "dmlc_task_id": "00000003",
        "dmlc_timeout": 60,
    }


@pytest.mark.parametrize(
    ("params", "devices", "made"),
    [
        ({}, (), {"nthread": 4}),
        ({"nthread": 2}, (), {"nthread": 2}),
        ({"n_jobs": 2}, (), {"n_jobs": 2}),
        ({}, (3,), {"nthread": 4, "device": "cuda:3"}),
        ({"device": "cuda"}, (1,), {"nthread": 4, "device": "cuda:1"}),
        ({"device": "cpu"}, (1,), {"nthread": 4, "device": "cpu"}),
    ],
)
def test_threads_and_gpu_are_the_workers_own_where_the_caller_has_not_chosen(params, devices, made):
    assert parameters(params, 4, devices) == made


def test_the_newest_values_are_reported_by_set_and_metric():
    log = {"train": {"auc": [0.7, 0.8]}, "valid": {"auc": [0.6, 0.7], "logloss": [(0.5, 0.1), (0.4, 0.2)]}}
    assert evaluated(log) == {
        "train-auc": 0.8,
        "valid-auc": 0.7,
        "valid-logloss-mean": 0.4,
        "valid-logloss-std": 0.2,
    }


@pytest.mark.parametrize(
    ("arguments", "named"),
    [({"xgboost_communicator": "federated"}, "xgboost_communicator='federated'"), ({"timeout_s": -1}, "timeout_s=-1")],
)
def test_a_configuration_that_cannot_work_is_refused_by_name(arguments, named):
    with pytest.raises(ValueError, match=named):
        XGBoostConfig(**arguments)


class XGBoostError(ValueError):
    """Named as XGBoost's own."""


@pytest.mark.parametrize(
    ("error", "is_echo"),
    [
        (
            XGBoostError("[12:00] result.cc:78:\n- [allreduce.cc:50]: failed\n- system error:Connection reset by peer"),
            True,
        ),
        (XGBoostError("[12:00] result.cc:78:\n- [loop.cc:9]: Broken pipe"), True),
        (XGBoostError("[12:00] learner.cc:7:\nCheck failed: labels must be in [0, 1]"), False),
        (ValueError("a line\nConnection reset by peer"), False),
    ],
)
def test_an_error_of_xgboost_that_tells_of_a_lost_peer_is_an_echo(error, is_echo):
    note_lost_peer(error)
    assert _is_echo(error) is is_echo


BLOCKED = """
import sys

sys.modules["xgboost"] = None
from paceline.train import Checkpoint, DataParallelTrainer, RunConfig
from paceline.train.xgboost import RayTrainReportCallback, XGBoostConfig, XGBoostTrainer

assert DataParallelTrainer(lambda: 5, run_config=RunConfig(storage_path="runs")).fit().return_value == 5
for make in (lambda: XGBoostTrainer(print), RayTrainReportCallback):
    try:
        make()
    except ImportError as error:
        print(error)
"""


def test_without_xgboost_the_rest_works_and_trainer_and_callback_name_the_extra(run_script):
    ended = run_script(BLOCKED)
    assert ended.returncode == 0, ended.stderr
    assert "XGBoostConfig needs xgboost, which is not installed" in ended.stdout
    assert "ReportCallback needs xgboost, which is not installed" in ended.stdout
    assert ended.stdout.count('pip install "paceline[xgboost]"') == 2


DECLARED = """
import json
import os
import signal
from pathlib import Path

import numpy as np
import paceline.data
import xgboost
from paceline import train
from paceline.train import FailureConfig, RunConfig, ScalingConfig
from paceline.train.xgboost import RayTrainReportCallback, XGBoostPredictor, XGBoostTrainer


class DiesOnce(xgboost.callback.TrainingCallback):
    def after_iteration(self, model, epoch, evals_log):
        died = Path("died")
        if train.get_context().get_world_rank() == 1 and model.num_boosted_rounds() == 13 and not died.exists():
            died.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return False


rows = paceline.data.from_items([{"a": n, "b": -n, "y": n % 2} for n in range(21)])


def fitted(name, **arguments):
    return XGBoostTrainer(
        scaling_config=ScalingConfig(num_workers=2),
        run_config=RunConfig(storage_path="runs", name=name, failure_config=FailureConfig(max_failures=1)),
        **arguments,
    ).fit()


declared = dict(datasets={"train": rows, "valid": rows.limit(5)}, label_column="y", params={"eta": 0.1})
result = fitted("killed", num_boost_round=25, callbacks=[DiesOnce()], verbose_eval=False, **declared)
model = XGBoostTrainer.get_model(result.checkpoint)
kept = [RayTrainReportCallback.get_model(one).num_boosted_rounds() for one, _ in result.best_checkpoints]
predictor = XGBoostPredictor(result.checkpoint, keep_columns=["y"])
predicted = predictor({"y": np.array([1]), "b": np.array([20.0]), "a": np.array([1.0])})


def train_func():
    matrix = xgboost.DMatrix(np.ones((3, 2)), label=np.ones(3), feature_names=["a", "b"])
    callback = RayTrainReportCallback(filename="model.json", frequency=3, metrics={"n": "ones-rows"})
    booster = xgboost.train({}, matrix, 4, evals=[(matrix, "ones")], callbacks=[callback])
    rank = train.get_context().get_world_rank()
    Path(f"rank-{rank}").write_text(json.dumps([xgboost.collective.get_rank(), booster.state]))


by_function = fitted("function", train_loop_per_worker=train_func)
loaded = RayTrainReportCallback.get_model(by_function.checkpoint, "model.json")
print(json.dumps({
    "died": Path("died").exists(),
    "metrics": result.metrics,
    "kept": kept,
    "state": model.state,
    "num_reports": len(result.metrics_dataframe),
    "predicted": predicted["predictions"].tolist(),
    "columns": list(predicted),
    "ranks": [json.loads(Path(f"rank-{rank}").read_text()) for rank in range(2)],
    "by_function": [by_function.metrics, len(by_function.metrics_dataframe), loaded.num_boosted_rounds()],
}))
"""


@pytest.fixture(scope="module")
def with_stand_in(tmp_path_factory):
    """What a script of two runs told, in whose directory the stand-in lies as `xgboost.py`."""
    path = tmp_path_factory.mktemp("stand-in")
    shutil.copy(STAND_IN, path / "xgboost.py")
    (path / "script.py").write_text(DECLARED)
    command = [sys.executable, "script.py"]
    ended = subprocess.run(command, cwd=path, capture_output=True, text=True, timeout=100)
    assert ended.returncode == 0, ended.stderr
    return json.loads(ended.stdout.splitlines()[-1])


def test_a_declared_training_goes_on_after_a_kill_up_to_the_number_of_rounds(with_stand_in):
    assert with_stand_in["died"]
    assert with_stand_in["state"]["rounds"] == 25
    # Every second round keeps the model. The last, which is odd, is reported once more with it.
    assert with_stand_in["kept"] == [*range(2, 25, 2), 25]
    assert with_stand_in["num_reports"] in (26, 27)


def test_each_worker_trains_on_its_part_and_evaluates_on_all_of_the_other_sets(with_stand_in):
    assert with_stand_in["state"]["num_rows"] == 21
    assert with_stand_in["metrics"] == {"train-rows": 21, "valid-rows": 10}
    assert with_stand_in["state"]["params"]["eta"] == 0.1
    assert with_stand_in["state"]["params"]["nthread"] >= 1
    assert with_stand_in["state"]["feature_names"] == ["a", "b"]


def test_a_predictor_gives_its_model_the_features_by_name(with_stand_in):
    assert with_stand_in["columns"] == ["y", "predictions"]
    assert with_stand_in["predicted"] == [1 + 20 + 25]


def test_a_function_runs_within_a_communicator_whose_ranks_are_ours(with_stand_in):
    (zero, state), (one, same) = with_stand_in["ranks"]
    assert (zero, one) == (0, 1)
    assert state == same
    assert state["num_rows"] == 6
    assert with_stand_in["by_function"] == [{"n": 6}, 5, 4]
