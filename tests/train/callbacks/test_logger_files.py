"""What built-in loggers write: every report once, in order, whatever happens to workers and drivers."""

import csv
import json
import math
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from paceline import train
from paceline.train import Checkpoint, DataParallelTrainer, Result, RunConfig, ScalingConfig
from paceline.train.loggers import CSVLoggerCallback, JsonLoggerCallback, TensorBoardLoggerCallback


def fit(path, function, num_workers=2, **run_config):
    return DataParallelTrainer(
        function,
        scaling_config=ScalingConfig(num_workers),
        run_config=RunConfig(
            name="run",
            storage_path=path,
            callbacks=[JsonLoggerCallback(), CSVLoggerCallback(), TensorBoardLoggerCallback()],
            **run_config,
        ),
    ).fit()


def json_lines(root):
    text = (root / "result.json").read_text()
    assert text == "" or text.endswith("\n")
    return [json.loads(line) for line in text.splitlines()]


def table(root):
    with (root / "progress.csv").open(newline="") as file:
        return list(csv.DictReader(file))


READ = """
import json, sys
sys.modules["tensorflow"] = None  # It would do the reading if it is there, and takes seconds to import.
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
found = EventAccumulator(sys.argv[1], size_guidance={"scalars": 0}).Reload()
tags = found.Tags()["scalars"]
print(json.dumps({tag: [(point.step, point.value) for point in found.Scalars(tag)] for tag in tags}))
"""


def scalars(root):
    """As TensorBoard reads them, in a process of its own: by tag, step and value."""
    pytest.importorskip("tensorboard")
    ended = subprocess.run([sys.executable, "-c", READ, str(root)], capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
    return {tag: [tuple(point) for point in points] for tag, points in json.loads(ended.stdout).items()}


def hidden_leftovers(root):
    return [path.name for path in root.iterdir() if path.name.endswith((".part", ".new"))]


@pytest.fixture(scope="module")
def varied(tmp_path_factory):
    """A run with metrics of every kind, some of which come later."""

    def function():
        rank = train.get_context().get_world_rank()
        train.report({"loss": train.mean(rank + 0.5), "text": 'a "quoted",\nline', "n": 2**70})
        train.report({"loss": train.mean(math.nan), "eval": {"acc": 0.1 + 0.2, "list": [1, 2]}, "ok": True})
        train.report({"loss": -math.inf, "none": None, "é": 1e300})
        for i in range(4, 104):
            train.report({"loss": float(i), "count": train.sum(1)})

    return fit(tmp_path_factory.mktemp("varied"), function)


def test_each_report_is_a_line_of_json_with_its_number_and_time(varied):
    rows = json_lines(Path(varied.path))
    assert [row["training_iteration"] for row in rows] == list(range(1, 104))
    assert all(abs(row["timestamp"] - rows[0]["timestamp"]) < 600 for row in rows)
    assert {"loss": 1.0, "text": 'a "quoted",\nline', "n": 2**70}.items() <= rows[0].items()
    assert math.isnan(rows[1]["loss"])
    assert rows[1]["eval"] == {"acc": 0.1 + 0.2, "list": [1, 2]}
    assert rows[2]["loss"] == -math.inf
    assert rows[2]["none"] is None
    assert [row["loss"] for row in rows[3:]] == [float(i) for i in range(4, 104)]
    assert {row["count"] for row in rows[3:]} == {2}, "reduced over the ranks"


def test_columns_that_come_later_are_in_the_header_and_older_rows_have_no_value(varied):
    rows = table(Path(varied.path))
    assert [int(row["training_iteration"]) for row in rows] == list(range(1, 104))
    assert list(rows[0]) == [
        *("training_iteration", "timestamp", "loss", "text", "n"),
        *("eval/acc", "eval/list", "ok", "none", "é", "count"),
    ]
    assert rows[0]["text"] == 'a "quoted",\nline'
    assert int(rows[0]["n"]) == 2**70
    assert float(rows[1]["eval/acc"]) == 0.1 + 0.2, "to the last digit"
    assert math.isnan(float(rows[1]["loss"]))
    assert rows[0]["eval/acc"] == rows[0]["count"] == rows[2]["none"] == ""
    assert json.loads(rows[1]["eval/list"]) == [1, 2]


def test_tensorboards_own_reader_finds_every_number(varied):
    found = scalars(Path(varied.path))
    assert found.keys() == {"loss", "n", "eval/acc", "ok", "é", "count"}
    assert [step for step, _ in found["loss"]] == list(range(1, 104))
    assert found["loss"][0] == (1, 1.0)
    assert math.isnan(found["loss"][1][1])
    assert found["loss"][2] == (3, -math.inf)
    assert found["loss"][3:] == [(i, float(i)) for i in range(4, 104)]
    assert found["count"] == [(i, 2.0) for i in range(4, 104)]
    assert found["eval/acc"][0][1] == pytest.approx(0.3)
    assert found["é"] == [(3, math.inf)], "more than a float of 32 bits holds"


def test_the_files_tell_the_same_as_the_journal_and_nothing_else_is_left(varied):
    expected = varied.metrics_dataframe["loss"].tolist()
    assert [row["loss"] for row in json_lines(Path(varied.path))] == pytest.approx(expected, nan_ok=True)
    assert hidden_leftovers(Path(varied.path)) == []


def test_reports_that_restarted_workers_make_again_replace_those_before(tmp_path):
    def function():
        last = train.get_checkpoint()
        life = 2 if last else 1
        for i in range(last.to_dict()["i"] + 1 if last else 1, 9):
            checkpoint = Checkpoint.from_dict({"i": i}) if i == 3 else None
            train.report({"i": i, "life": train.max(life)}, checkpoint=checkpoint)
            if i == 6 and life == 1:
                # All of it has been told: the metrics of a report without a checkpoint are.
                train.collective.barrier()
                raise RuntimeError("planted")

    result = fit(tmp_path, function, failure_config=train.FailureConfig(max_failures=1))
    root = Path(result.path)
    expected = [1, 1, 1, 2, 2, 2, 2, 2]
    assert [row["life"] for row in json_lines(root)] == expected
    assert [int(row["life"]) for row in table(root)] == expected
    assert [row["i"] for row in json_lines(root)] == list(range(1, 9))
    assert result.metrics_dataframe["life"].tolist() == expected
    assert scalars(root)["life"] == [(i, float(life)) for i, life in enumerate(expected, start=1)]


def test_every_report_is_logged_though_ranks_report_differently_often_and_one_fails(tmp_path):
    def function():
        rank = train.get_context().get_world_rank()
        for i in range(5 if rank == 0 else 2):
            train.report({"i": i, "sum": train.sum(1)})
        train.collective.barrier()
        if rank == 1:
            raise RuntimeError("planted")
        train.collective.barrier()

    with pytest.raises(train.TrainingFailedError) as raised:
        fit(tmp_path, function)
    rows = json_lines(tmp_path / "run")
    assert [(row["i"], row["sum"]) for row in rows] == [(0, 2), (1, 2), (2, 1), (3, 1), (4, 1)]
    assert raised.value.result.metrics == {"i": 4, "sum": 1}


SCRIPT = """
import os, signal, sys
from paceline import train
from paceline.train import Checkpoint, DataParallelTrainer, RunConfig, ScalingConfig
from paceline.train.loggers import CSVLoggerCallback, JsonLoggerCallback, LoggerCallback, TBXLoggerCallback

class Killer(LoggerCallback):
    "Comes before the other loggers, and kills the driver at a report that they have not been told of."
    def log_report(self, report):
        if report.number == int(sys.argv[1]):
            os.kill(os.getpid(), signal.SIGKILL)

def function():
    last = train.get_checkpoint()
    for i in range(last.to_dict()["i"] + 1 if last else 0, 12):
        checkpoint = Checkpoint.from_dict({"i": i}) if i % 4 == 3 else None
        train.report({"i": i, "both": train.sum(i), **({"late": i} if i > 5 else {})}, checkpoint=checkpoint)

callbacks = [JsonLoggerCallback(), CSVLoggerCallback(), TBXLoggerCallback()]
callbacks.insert(int(sys.argv[2]), Killer())
DataParallelTrainer(
    function,
    scaling_config=ScalingConfig(2),
    run_config=RunConfig(name="run", storage_path="runs", callbacks=callbacks),
).fit()
"""


@pytest.mark.parametrize("place", [0, 2])
def test_a_killed_driver_costs_no_line_and_doubles_none(run_script, tmp_path, place):
    root = tmp_path / "runs" / "run"
    for number in (2, 7, 12):
        ended = run_script(SCRIPT, str(number), str(place))
        assert ended.returncode == -signal.SIGKILL, ended.stderr
        rows = json_lines(root)
        assert [row["i"] for row in rows] == list(range(len(rows))), "also what lies there meanwhile is no nonsense"
    # The last driver was killed when all was reported: its run may be complete, or not quite.
    ended = run_script(SCRIPT, "0", str(place))
    assert ended.returncode == 0, ended.stderr
    assert [(row["i"], row["both"]) for row in json_lines(root)] == [(i, 2 * i) for i in range(12)]
    assert [int(row["i"]) for row in table(root)] == list(range(12))
    assert [row["late"] for row in table(root)] == [""] * 6 + [str(i) for i in range(6, 12)]
    assert Result.from_path(root).metrics_dataframe["i"].tolist() == list(range(12))
    assert hidden_leftovers(root) == []
    assert len(list(root.glob("events.out.tfevents.*"))) == 1, "one file, not one for each driver"
    assert scalars(root)["both"] == [(i + 1, 2.0 * i) for i in range(12)]


def test_a_complete_run_whose_loggers_had_not_finished_is_logged_when_it_is_run_again(tmp_path):
    def function():
        for i in range(3):
            train.report({"i": i})

    root = Path(fit(tmp_path, function, 1).path)
    (root / "result.json").write_text('{"training_iteration": 1')
    (root / "progress.csv").unlink()
    fit(tmp_path, function, 1)
    assert [row["i"] for row in json_lines(root)] == [0, 1, 2]
    assert [row["i"] for row in table(root)] == ["0", "1", "2"]


def test_files_may_go_to_another_directory(tmp_path):
    logger = JsonLoggerCallback(logdir=tmp_path / "elsewhere" / "deep", filename="mine.jsonl")
    config = RunConfig(name="run", storage_path=tmp_path, callbacks=[logger])
    DataParallelTrainer(lambda: train.report({"i": 1}), run_config=config).fit()
    assert '"i": 1' in (tmp_path / "elsewhere" / "deep" / "mine.jsonl").read_text()
    assert not (tmp_path / "run" / "result.json").exists()


def test_a_checkpoint_cannot_take_the_name_of_a_loggers_file(tmp_path):
    def function():
        train.report({}, checkpoint=Checkpoint.from_dict({}), checkpoint_dir_name="result.json")

    with pytest.raises(train.TrainingFailedError, match="not a plain directory name"):
        DataParallelTrainer(function, run_config=RunConfig(name="run", storage_path=tmp_path)).fit()


def test_a_logger_that_cannot_write_is_dropped_and_the_rest_goes_on(tmp_path, caplog):
    (tmp_path / "in the way").write_text("a file")
    callbacks = [JsonLoggerCallback(logdir=tmp_path / "in the way"), CSVLoggerCallback()]
    config = RunConfig(name="run", storage_path=tmp_path, callbacks=callbacks)
    result = DataParallelTrainer(lambda: train.report({"i": 1}), run_config=config).fit()
    assert result.metrics == {"i": 1}
    assert "the callback JsonLoggerCallback raised and is dropped" in caplog.text
    assert "NotADirectoryError" in caplog.text or "FileExistsError" in caplog.text
    assert [row["i"] for row in table(tmp_path / "run")] == ["1"]


def test_of_a_run_in_a_store_the_files_are_uploaded_at_its_end(tmp_path):
    import fsspec
    from fsspec.implementations.dirfs import DirFileSystem

    store = tmp_path / "store"
    store.mkdir()
    config = RunConfig(
        name="run",
        storage_path="bucket",
        storage_filesystem=DirFileSystem(str(store), fsspec.filesystem("file")),
        callbacks=[JsonLoggerCallback(), CSVLoggerCallback(), TensorBoardLoggerCallback()],
    )
    DataParallelTrainer(lambda: train.report({"i": 1}), run_config=config).fit()
    root = store / "bucket" / "run"
    assert [row["i"] for row in json_lines(root)] == [1]
    assert [row["i"] for row in table(root)] == ["1"]
    assert len(list(root.glob("events.out.tfevents.*.paceline"))) == 1


READ_PARAMETERS = """
import json, sys
sys.modules["tensorflow"] = None
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.plugins.hparams import metadata
found = EventAccumulator(sys.argv[1]).Reload()
content = found.SummaryMetadata("_hparams_/session_start_info").plugin_data.content
told = metadata.parse_session_start_info_plugin_data(content)
print(json.dumps({name: getattr(value, value.WhichOneof("kind")) for name, value in told.hparams.items()}))
"""


def test_tensorboards_own_reader_finds_the_config(tmp_path):
    pytest.importorskip("tensorboard")
    config = {"lr": 0.1, "net": {"width": 8, "kind": "wide"}, "bias": True, "huge": 10**400, "of": [1, 2]}
    DataParallelTrainer(
        lambda config: train.report({"loss": 1.0}),
        train_loop_config=config,
        run_config=RunConfig(name="run", storage_path=tmp_path, callbacks=[TensorBoardLoggerCallback()]),
    ).fit()
    line = [sys.executable, "-c", READ_PARAMETERS, str(tmp_path / "run")]
    ended = subprocess.run(line, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
    assert json.loads(ended.stdout) == {
        "lr": 0.1,
        "net/width": 8.0,
        "net/kind": "wide",
        "bias": True,
        "huge": str(10**400),
        "of": "[1, 2]",
    }
    assert scalars(tmp_path / "run") == {"loss": [(1, 1.0)]}
