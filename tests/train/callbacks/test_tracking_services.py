"""MLflow and Weights & Biases: with the packages themselves where they are installed, in their offline modes.

Where they are not, stand-ins record the calls that are made, in the form in which the packages' documentation has them:
that shows what is logged and how a run goes on, and not that a service would take it.
"""

import json
import signal
import sys
from pathlib import Path

import pytest

from paceline import train
from paceline.train import DataParallelTrainer, RunConfig, ScalingConfig
from paceline.train.loggers import MLflowLoggerCallback, WandbLoggerCallback

CLIENT = """
import json, pathlib, types
from mlflow.entities import Metric, Param

HERE = pathlib.Path(__file__).parent / "calls.jsonl"

def calls():
    return [json.loads(line) for line in HERE.read_text().splitlines()] if HERE.exists() else []

def named(**info):
    return types.SimpleNamespace(**info)

class MlflowClient:
    def __init__(self, tracking_uri=None, registry_uri=None):
        pass

    def _note(self, call, **told):
        with HERE.open("a") as file:
            file.write(json.dumps({"call": call, **told}) + "\\n")

    def get_experiment_by_name(self, name):
        known = [call for call in calls() if call["call"] == "create_experiment" and call["name"] == name]
        return named(experiment_id="7") if known else None

    def create_experiment(self, name):
        self._note("create_experiment", name=name)
        return "7"

    def create_run(self, experiment_id, start_time=None, tags=None, run_name=None):
        run_id = f"r{len(calls())}"
        self._note("create_run", run_id=run_id, experiment_id=experiment_id, tags=tags, run_name=run_name)
        return named(info=named(run_id=run_id))

    def search_runs(self, experiment_ids, filter_string="", run_view_type=1, max_results=1000, order_by=None):
        tag, value = filter_string.removeprefix("tags.").split(" = ")
        found = [c for c in calls() if c["call"] == "create_run" and c["tags"].get(tag.strip("`")) == value.strip("'")]
        return [named(info=named(run_id=call["run_id"])) for call in found[::-1]][:max_results]

    def update_run(self, run_id, status=None, name=None):
        self._note("update_run", run_id=run_id, status=status)

    def log_batch(self, run_id, metrics=(), params=(), tags=(), synchronous=None):
        assert all(isinstance(metric, Metric) for metric in metrics)
        assert all(isinstance(param, Param) for param in params)
        assert len(metrics) <= 1000
        self._note("log_batch", run_id=run_id, metrics=[vars(m) for m in metrics], params=[vars(p) for p in params])

    def get_metric_history(self, run_id, key):
        logged = [call for call in calls() if call["call"] == "log_batch" and call["run_id"] == run_id]
        return [named(**point) for call in logged for point in call["metrics"] if point["key"] == key]

    def log_dict(self, run_id, dictionary, artifact_file):
        self._note("log_dict", run_id=run_id, dictionary=dictionary, artifact_file=artifact_file)

    def set_terminated(self, run_id, status=None, end_time=None):
        self._note("set_terminated", run_id=run_id, status=status)
"""

ENTITIES = """
class Metric:
    def __init__(self, key, value, timestamp, step):
        assert isinstance(value, float) and isinstance(timestamp, int) and isinstance(step, int)
        self.key, self.value, self.timestamp, self.step = key, value, timestamp, step

class Param:
    def __init__(self, key, value):
        assert isinstance(key, str) and isinstance(value, str)
        self.key, self.value = key, value
"""

WANDB = """
import json, pathlib

HERE = pathlib.Path(__file__).parent / "calls.jsonl"

def note(call, **told):
    with HERE.open("a") as file:
        file.write(json.dumps({"call": call, **told}) + "\\n")

class Run:
    def define_metric(self, name, step_metric=None):
        note("define_metric", name=name, step_metric=step_metric)

    def log(self, data, step=None):
        note("log", data=data, step=step)

    def log_artifact(self, artifact, aliases=None):
        note("log_artifact", **vars(artifact), aliases=aliases)

    def finish(self, exit_code=None):
        note("finish", exit_code=exit_code)

class Artifact:
    def __init__(self, name, type, description=None, metadata=None):
        self.name, self.type, self.metadata, self.references = name, type, metadata, []

    def add_reference(self, uri, name=None, checksum=True, max_objects=None):
        assert not checksum, "it would read all files"
        self.references.append(uri)

def init(**told):
    note("init", **told)
    return Run()
"""

SCRIPT = """
import os, signal, sys
from paceline import train
from paceline.train import Checkpoint, DataParallelTrainer, FailureConfig, RunConfig, ScalingConfig
from paceline.train.loggers import LoggerCallback, MLflowLoggerCallback, WandbLoggerCallback

class Killer(LoggerCallback):
    def log_report(self, report):
        if report.number == int(sys.argv[2]):
            os.kill(os.getpid(), signal.SIGKILL)

def function(config):
    last = train.get_checkpoint()
    for i in range(last.to_dict()["i"] + 1 if last else 1, 7):
        checkpoint = Checkpoint.from_dict({"i": i}) if i == 2 else None
        train.report({"i": i, "eval": {"acc@1": train.sum(i)}, "note": "text"}, checkpoint=checkpoint)

if sys.argv[1] == "mlflow":
    logger = MLflowLoggerCallback("sqlite:///mlflow.db", experiment_name="tries", tags={"of": 1})
else:
    logger = WandbLoggerCallback("tries", group="all", excludes=["note"], log_config=True, mode="offline")
DataParallelTrainer(
    function,
    train_loop_config={"lr": 0.1, "net": {"width": 8}},
    scaling_config=ScalingConfig(2),
    run_config=RunConfig(name="run", storage_path="runs", callbacks=[Killer(), logger]),
).fit()
"""


def calls(package):
    return [json.loads(line) for line in (package / "calls.jsonl").read_text().splitlines()]


def run_twice(run_script, service):
    """The first driver is killed at report 5, of which its logger has not been told."""
    ended = run_script(SCRIPT, service, "5")
    assert ended.returncode == -signal.SIGKILL, ended.stderr
    ended = run_script(SCRIPT, service, "0")
    assert (ended.returncode, "raised" in ended.stderr) == (0, False), ended.stderr


def test_a_run_goes_on_with_its_mlflow_run_and_no_point_is_lost(run_script, tmp_path):
    package = tmp_path / "mlflow"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "tracking.py").write_text(CLIENT)
    (package / "entities.py").write_text(ENTITIES)
    run_twice(run_script, "mlflow")
    made = calls(package)
    (created,) = (call for call in made if call["call"] == "create_run")
    assert created["run_name"] == "run"
    assert created["tags"]["of"] == "1"
    assert {call["run_id"] for call in made if "run_id" in call} == {created["run_id"]}
    (params,) = (call["params"] for call in made if call.get("params"))
    assert {param["key"]: param["value"] for param in params} == {"lr": "0.1", "net/width": "8"}
    points = [point for call in made if call["call"] == "log_batch" for point in call["metrics"]]
    assert {point["key"] for point in points} == {"i", "eval/acc_1"}, "names as MLflow allows them, and only numbers"
    of_i = [(point["step"], point["value"], point["timestamp"]) for point in points if point["key"] == "i"]
    assert len(set(of_i)) == len(of_i), "no point is logged twice"
    steps = [step for step, _, _ in of_i]
    assert steps[:4] == [1, 2, 3, 4]
    # Those that the killed driver had heard of come from the journal, then the reports that are made again.
    assert steps[-4:] == [3, 4, 5, 6]
    assert all(value == step for step, value, _ in of_i)
    assert {point["value"] for point in points if point["key"] == "eval/acc_1"} == {2.0 * i for i in range(1, 7)}
    (saved,) = (call for call in made if call["call"] == "log_dict")
    assert saved["artifact_file"] == "checkpoints/checkpoint_000002.json"
    assert saved["dictionary"]["uri"] == (tmp_path / "runs" / "run" / "checkpoint_000002").as_uri(), "where it is"
    assert saved["dictionary"]["step"] == 2
    assert saved["dictionary"]["metrics"] == {"i": 2, "eval/acc@1": 4, "note": "text"}
    assert made[-1] == {"call": "set_terminated", "run_id": created["run_id"], "status": "FINISHED"}


def test_a_run_goes_on_under_its_id_at_wandb_and_no_report_is_lost(run_script, tmp_path):
    package = tmp_path / "wandb"
    package.mkdir()
    (package / "__init__.py").write_text(WANDB)
    run_twice(run_script, "wandb")
    made = calls(package)
    first, second = (call for call in made if call["call"] == "init")
    assert first == second, "the id included"
    assert {
        "project": "tries",
        "group": "all",
        "name": "run",
        "mode": "offline",
        "resume": "allow",
    }.items() <= first.items()
    assert first["config"] == {"lr": 0.1, "net": {"width": 8}}
    assert first["dir"] == str(tmp_path / "runs" / "run")
    assert {"call": "define_metric", "name": "*", "step_metric": "training_iteration"} in made
    logged = [call["data"] for call in made if call["call"] == "log"]
    assert all(data == {"i": n, "eval/acc@1": 2 * n, "training_iteration": n} for data in logged for n in [data["i"]])
    numbers = [data["i"] for data in logged]
    assert numbers[:4] == [1, 2, 3, 4]
    assert numbers[-4:] == [3, 4, 5, 6], "what is made again follows"
    (saved,) = (call for call in made if call["call"] == "log_artifact")
    assert (saved["name"], saved["type"]) == ("run-checkpoint", "model")
    assert saved["references"] == [(tmp_path / "runs" / "run" / "checkpoint_000002").as_uri()]
    assert saved["aliases"] == ["latest", "checkpoint_000002"]
    assert saved["metadata"]["training_iteration"] == 2
    assert made[-1] == {"call": "finish", "exit_code": 0}


def fit(path, logger):
    def function():
        for i in range(3):
            train.report({"i": train.sum(i)})

    config = RunConfig(name="run", storage_path=path, callbacks=[logger])
    return DataParallelTrainer(function, scaling_config=ScalingConfig(2), run_config=config).fit()


def test_mlflow_itself_keeps_every_point(tmp_path):
    mlflow = pytest.importorskip("mlflow", reason="mlflow is not installed: only the calls made to it were checked")
    uri = f"sqlite:///{tmp_path}/mlflow.db"
    fit(tmp_path, MLflowLoggerCallback(uri, experiment_name="tries"))
    client = mlflow.tracking.MlflowClient(tracking_uri=uri)
    (run,) = client.search_runs([client.get_experiment_by_name("tries").experiment_id])
    assert run.info.status == "FINISHED"
    points = client.get_metric_history(run.info.run_id, "i")
    assert [(point.step, point.value) for point in points] == [(1, 0.0), (2, 2.0), (3, 4.0)]


def test_wandb_itself_writes_a_run_offline(tmp_path):
    pytest.importorskip("wandb", reason="wandb is not installed: only the calls made to it were checked")
    fit(tmp_path, WandbLoggerCallback("tries", mode="offline"))
    assert list(Path(tmp_path, "run", "wandb").glob("offline-run-*/*.wandb"))


@pytest.mark.parametrize(
    ("logger", "package"), [(MLflowLoggerCallback, "mlflow"), (WandbLoggerCallback, "wandb")], ids=["mlflow", "wandb"]
)
def test_a_logger_whose_package_is_missing_names_the_extra(monkeypatch, logger, package):
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(ImportError, match=rf'needs {package}.*\n\nhint: pip install "paceline\[{package}\]"'):
        logger()
