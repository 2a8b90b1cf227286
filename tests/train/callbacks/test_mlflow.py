"""MLflow itself, with a database file, read back with its own client."""

import json
import math
import signal
import socket
import threading
import warnings
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from training_scripts import LOGGED

from paceline import train
from paceline.train import Checkpoint, TrainingFailedError
from paceline.train.loggers import MLflowLoggerCallback
from paceline.train.loggers import mlflow as ours

pytestmark = [
    # MLflow's tables use a way of loading that SQLAlchemy will drop.
    pytest.mark.filterwarnings("ignore:The ``noload`` loader strategy is deprecated"),
    # Its client leaves the database's connections to the garbage collector.
    pytest.mark.filterwarnings("ignore:unclosed database:ResourceWarning"),
    pytest.mark.filterwarnings("ignore:.*sqlite3.Connection:pytest.PytestUnraisableExceptionWarning"),
]

SCRIPT = f"""{LOGGED}
from paceline.train.loggers import MLflowLoggerCallback

logger = MLflowLoggerCallback(sys.argv[2], experiment_name="tries", tags={{"of": 1}})
Killer.before_kill = lambda self: logger._sender.wait(60)
DataParallelTrainer(
    function,
    train_loop_config=config,
    scaling_config=ScalingConfig(2),
    run_config=RunConfig(name="run", storage_path="runs", callbacks=[Killer(), logger]),
).fit()
"""


@pytest.fixture(autouse=True)
def nothing_is_told_about_its_use(monkeypatch):
    monkeypatch.setenv("MLFLOW_DISABLE_TELEMETRY", "true")


@pytest.fixture(scope="module")
def mlflow():
    # Not at the top: a module that is collected and not run would cost the seconds, too.
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return pytest.importorskip("mlflow", reason="mlflow is not installed: logging to it was not checked")


@pytest.fixture(scope="module")
def uri(mlflow, tmp_path_factory):
    """One for all: making its tables takes seconds."""
    directory = tmp_path_factory.mktemp("mlflow")
    uri = f"sqlite:///{directory}/mlflow.db"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        client = mlflow.MlflowClient(uri)
        client.create_experiment("tries", artifact_location=str(directory / "artifacts"))
    return uri


@pytest.fixture
def client(mlflow, uri):
    return mlflow.MlflowClient(uri)


def runs_of(client, experiment):
    return client.search_runs([client.get_experiment_by_name(experiment).experiment_id])


def points_of(client, run, name):
    history = client.get_metric_history(run.info.run_id, name)
    return [(point.step, point.value) for point in sorted(history, key=lambda point: (point.timestamp, point.step))]


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_a_run_goes_on_with_its_mlflow_run_and_no_point_is_lost(run_script, tmp_path, uri, client):
    process = run_script(SCRIPT, "5", uri, timeout=100)
    assert process.returncode == -signal.SIGKILL, process.stderr
    (killed,) = runs_of(client, "tries")
    assert killed.info.status == "RUNNING"
    # How many of the reports that came at once with the fifth its logger had been told of, chance decides.
    assert points_of(client, killed, "i") in [[(i, i) for i in range(1, last + 1)] for last in (2, 3, 4)]
    process = run_script(SCRIPT, "0", uri, timeout=100)
    assert (process.returncode, "raised" in process.stderr) == (0, False), process.stderr

    (run,) = runs_of(client, "tries")
    assert run.info.run_id == killed.info.run_id
    assert (run.info.run_name, run.info.status, run.data.tags["of"]) == ("run", "FINISHED", "1")
    assert run.data.params == {"lr": "0.1", "net/width": "8"}
    assert run.data.metrics.keys() == {"i", "eval/acc_1"}, "names as MLflow allows them, and only numbers"
    points = points_of(client, run, "i")
    assert points[:4] == [(i, i) for i in (1, 2, 3, 4)]
    # Those that the killed driver had heard of come from the journal, then the reports that are made again.
    assert points[-4:] == [(i, i) for i in (3, 4, 5, 6)]
    history = client.get_metric_history(run.info.run_id, "i")
    assert len({(point.step, point.timestamp) for point in history}) == len(history), "no point is logged twice"
    assert {value for _, value in points_of(client, run, "eval/acc_1")} == {2.0 * i for i in range(1, 7)}
    (file,) = client.list_artifacts(run.info.run_id, "checkpoints")
    assert file.path == "checkpoints/checkpoint_000002.json"
    content = json.loads(Path(run.info.artifact_uri, file.path).read_text())
    assert content["uri"] == (tmp_path / "runs" / "run" / "checkpoint_000002").as_uri(), "where it is"
    assert content["step"] == 2
    assert content["metrics"] == {"i": 2, "eval/acc@1": 4, "note": "text"}


def test_a_run_that_fails_is_failed_there_and_whatever_it_reported_is_taken(fit, uri, client):
    def function(config):
        train.report({"plain": 1, "a//b": 2, "../up": 3, "/": 4, "é@x": 5, "n" * 300: 6})
        train.report({"plain": math.nan, "large": 10**400, "small": -math.inf})
        raise ValueError("no more")

    logger = MLflowLoggerCallback(uri, experiment_name="failing")
    config = {"text": "x" * 10_000, "a@": 1, "a_": 2, "..": 3} | {f"p{number}": number for number in range(150)}
    with pytest.raises(TrainingFailedError):
        fit(function, 1, callbacks=[logger], config=config)
    (run,) = runs_of(client, "failing")
    assert run.info.status == "FAILED"
    assert run.data.metrics.keys() == {"plain", "a/b", "__/up", "_", "é_x", "n" * 250, "large", "small"}
    assert points_of(client, run, "plain")[0] == (1, 1)
    assert math.isnan(points_of(client, run, "plain")[1][1])
    assert run.data.metrics["large"] == -run.data.metrics["small"] > 1e300
    assert len(run.data.params) == 150 + 3
    assert len(run.data.params["text"]) == 6000


@pytest.mark.slow
def test_trials_at_once_are_runs_of_one_experiment(tmp_path, fit, mlflow):
    """In a database that is not there yet, so that they also create it at once."""
    uri = f"sqlite:///{tmp_path}/mlflow.db"
    logger = MLflowLoggerCallback(uri)
    meeting = threading.Barrier(3)

    def function(config):
        for i in range(20):
            train.report({"value": config["number"] * 100 + i})

    def run_trial(number):
        name = f"trial_{number}"
        meeting.wait()
        fit(function, 1, callbacks=[logger.for_trial("search", name)], name=name, config={"number": number})

    with ThreadPoolExecutor(3) as threads:
        list(threads.map(run_trial, range(3)))
    client = mlflow.MlflowClient(uri)
    runs = {run.info.run_name: run for run in runs_of(client, "search")}
    assert runs.keys() == {"trial_0", "trial_1", "trial_2"}
    for number in range(3):
        run = runs[f"trial_{number}"]
        assert run.info.status == "FINISHED"
        assert run.data.params == {"number": str(number)}
        assert points_of(client, run, "value") == [(i + 1, number * 100 + i) for i in range(20)]


@pytest.mark.slow
def test_a_server_that_never_answers_holds_up_nothing(fit, mlflow, monkeypatch, caplog):
    monkeypatch.setattr(ours, "_ANSWER_TIMEOUT_S", 0.5)
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")

    def function():
        for i in range(3):
            train.report({"i": i}, checkpoint=Checkpoint.from_dict({"i": i}))

    with socket.create_server(("127.0.0.1", 0)) as server:
        logger = MLflowLoggerCallback(f"http://127.0.0.1:{server.getsockname()[1]}")
        result = fit(function, 1, callbacks=[logger])
        with server.accept()[0] as connection:
            assert connection.recv(10), "it was asked"
        assert len(result.best_checkpoints) == 3
    (record,) = (record for record in caplog.records if "raised" in record.message)
    assert record.message == "the callback MLflowLoggerCallback raised at the end of the run"
    assert "MLflow did not respond for 0.5 s\n\nhint: " in caplog.text
