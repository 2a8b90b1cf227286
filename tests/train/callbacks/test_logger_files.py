"""The files of built-in loggers: every report once, in order, whatever happens to workers and drivers."""

import csv
import json
import math
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from training_scripts import LOGGED

from paceline import train
from paceline.train import Checkpoint, Result
from paceline.train.loggers import CSVLoggerCallback, JsonLoggerCallback, TensorBoardLoggerCallback


def loggers():
    return [JsonLoggerCallback(), CSVLoggerCallback(), TensorBoardLoggerCallback()]


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
from tensorboard.plugins.hparams import metadata
found = EventAccumulator(sys.argv[1], size_guidance={"scalars": 0}).Reload()
tags = found.Tags()["scalars"]
scalars = {tag: [(point.step, point.value) for point in found.Scalars(tag)] for tag in tags}
parameters = {}
if "_hparams_/session_start_info" in found.summary_metadata:
    content = found.SummaryMetadata("_hparams_/session_start_info").plugin_data.content
    for name, value in metadata.parse_session_start_info_plugin_data(content).hparams.items():
        parameters[name] = getattr(value, value.WhichOneof("kind"))
print(json.dumps([scalars, parameters]))
"""


def read_tensorboard(root):
    """As TensorBoard reads them, in a process of its own: scalars by tag, step and value; and the parameters."""
    pytest.importorskip("tensorboard")
    process = subprocess.run([sys.executable, "-c", READ, str(root)], capture_output=True, text=True, check=False)
    assert process.returncode == 0, process.stderr
    found, parameters = json.loads(process.stdout)
    return {tag: [tuple(point) for point in points] for tag, points in found.items()}, parameters


def scalars(root):
    return read_tensorboard(root)[0]


def hidden_leftovers(root):
    return [path.name for path in root.iterdir() if path.name.endswith((".part", ".new"))]


def test_every_report_and_the_config_are_in_the_files_whatever_kinds_of_metrics_there_are(fit):
    def function(config):
        rank = train.get_context().get_world_rank()
        train.report({"loss": train.mean(rank + 0.5), "text": 'a "quoted",\nline', "n": 2**70})
        train.report({"loss": train.mean(math.nan), "eval": {"acc": 0.1 + 0.2, "list": [1, 2]}, "ok": True})
        train.report({"loss": -math.inf, "none": None, "é": 1e300})
        for i in range(4, 104):
            train.report({"loss": float(i), "count": train.sum(1)})

    config = {"lr": 0.1, "net": {"width": 8, "kind": "wide"}, "bias": True, "huge": 10**400, "of": [1, 2]}
    result = fit(function, config=config, callbacks=loggers())
    root = Path(result.path)
    assert hidden_leftovers(root) == []

    rows = json_lines(root)
    assert [row["training_iteration"] for row in rows] == list(range(1, 104))
    assert all(abs(row["timestamp"] - rows[0]["timestamp"]) < 600 for row in rows)
    assert {"loss": 1.0, "text": 'a "quoted",\nline', "n": 2**70}.items() <= rows[0].items()
    assert math.isnan(rows[1]["loss"])
    assert rows[1]["eval"] == {"acc": 0.1 + 0.2, "list": [1, 2]}
    assert (rows[2]["loss"], rows[2]["none"]) == (-math.inf, None)
    assert [row["loss"] for row in rows[3:]] == [float(i) for i in range(4, 104)]
    assert {row["count"] for row in rows[3:]} == {2}, "reduced over the ranks"
    assert [row["loss"] for row in rows] == pytest.approx(result.metrics_dataframe["loss"].tolist(), nan_ok=True)

    rows = table(root)
    assert [int(row["training_iteration"]) for row in rows] == list(range(1, 104))
    later = ["eval/acc", "eval/list", "ok", "none", "é", "count"]
    assert list(rows[0]) == ["training_iteration", "timestamp", "loss", "text", "n", *later]
    assert rows[0]["text"] == 'a "quoted",\nline'
    assert int(rows[0]["n"]) == 2**70
    assert float(rows[1]["eval/acc"]) == 0.1 + 0.2, "to the last digit"
    assert math.isnan(float(rows[1]["loss"]))
    assert rows[0]["eval/acc"] == rows[0]["count"] == rows[2]["none"] == ""
    assert json.loads(rows[1]["eval/list"]) == [1, 2]

    points, parameters = read_tensorboard(root)
    numbers = {"lr": 0.1, "net/width": 8.0, "bias": True}
    assert parameters == {**numbers, "net/kind": "wide", "huge": str(10**400), "of": "[1, 2]"}
    assert points.keys() == {"loss", "n", "eval/acc", "ok", "é", "count"}
    assert [step for step, _ in points["loss"]] == list(range(1, 104))
    assert points["loss"][0] == (1, 1.0)
    assert math.isnan(points["loss"][1][1])
    assert points["loss"][2:] == [(3, -math.inf), *((i, float(i)) for i in range(4, 104))]
    assert points["count"] == [(i, 2.0) for i in range(4, 104)]
    assert points["eval/acc"][0][1] == pytest.approx(0.3)
    assert points["é"] == [(3, math.inf)], "more than a float of 32 bits holds"


def test_reports_that_restarted_workers_make_again_replace_those_before(fit):
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

    result = fit(function, callbacks=loggers(), max_failures=1)
    root = Path(result.path)
    expected = [1, 1, 1, 2, 2, 2, 2, 2]
    assert [row["life"] for row in json_lines(root)] == expected
    assert [int(row["life"]) for row in table(root)] == expected
    assert [row["i"] for row in json_lines(root)] == list(range(1, 9))
    assert result.metrics_dataframe["life"].tolist() == expected
    assert scalars(root)["life"] == [(i, float(life)) for i, life in enumerate(expected, start=1)]


SCRIPT = f"""{LOGGED}
from paceline.train.loggers import CSVLoggerCallback, JsonLoggerCallback, TBXLoggerCallback

def function(config):
    last = train.get_checkpoint()
    for i in range(last.to_dict()["i"] + 1 if last else 0, 12):
        checkpoint = Checkpoint.from_dict({{"i": i}}) if i % 4 == 3 else None
        late = {{"late": i}} if i > 5 else {{}}
        train.report({{"i": i, "both": train.sum(i), **late}}, checkpoint=checkpoint)

callbacks = [JsonLoggerCallback(), CSVLoggerCallback(), TBXLoggerCallback()]
callbacks.insert(int(sys.argv[2]), Killer())
fit(function, callbacks=callbacks)
"""


@pytest.mark.slow
@pytest.mark.parametrize("place", [0, 2])
def test_a_killed_driver_costs_no_line_and_doubles_none(run_script, tmp_path, place):
    root = tmp_path / "runs" / "run"
    for number in (2, 12):
        process = run_script(SCRIPT, str(number), str(place))
        assert process.returncode == -signal.SIGKILL, process.stderr
        rows = json_lines(root)
        assert [row["i"] for row in rows] == list(range(len(rows))), "also what lies there meanwhile is no nonsense"
    # The last driver was killed when all was reported: its run may be complete, or not quite.
    process = run_script(SCRIPT, "0", str(place))
    assert process.returncode == 0, process.stderr
    assert [(row["i"], row["both"]) for row in json_lines(root)] == [(i, 2 * i) for i in range(12)]
    assert [int(row["i"]) for row in table(root)] == list(range(12))
    assert [row["late"] for row in table(root)] == [""] * 6 + [str(i) for i in range(6, 12)]
    assert Result.from_path(root).metrics_dataframe["i"].tolist() == list(range(12))
    assert hidden_leftovers(root) == []
    assert len(list(root.glob("events.out.tfevents.*"))) == 1, "one file, not one for each driver"
    assert scalars(root)["both"] == [(i + 1, 2.0 * i) for i in range(12)]


def test_a_complete_run_whose_loggers_had_not_finished_is_logged_when_it_is_run_again(fit):
    def function():
        for i in range(3):
            train.report({"i": i})

    root = Path(fit(function, 1, callbacks=loggers()).path)
    (root / "result.json").write_text('{"training_iteration": 1')
    (root / "progress.csv").unlink()
    fit(function, 1, callbacks=loggers())
    assert [row["i"] for row in json_lines(root)] == [0, 1, 2]
    assert [row["i"] for row in table(root)] == ["0", "1", "2"]


def test_a_logger_that_cannot_write_is_dropped_and_one_may_write_elsewhere(tmp_path, fit, caplog):
    (tmp_path / "in the way").write_text("a file")
    elsewhere = JsonLoggerCallback(logdir=tmp_path / "elsewhere" / "deep", filename="mine.jsonl")
    callbacks = [JsonLoggerCallback(logdir=tmp_path / "in the way"), CSVLoggerCallback(), elsewhere]
    result = fit(lambda: train.report({"i": 1}), 1, callbacks=callbacks)
    assert result.metrics == {"i": 1}
    assert '"i": 1' in (tmp_path / "elsewhere" / "deep" / "mine.jsonl").read_text()
    assert not (tmp_path / "run" / "result.json").exists()
    assert "the callback JsonLoggerCallback raised an exception and is dropped" in caplog.text
    assert "NotADirectoryError" in caplog.text or "FileExistsError" in caplog.text
    assert [row["i"] for row in table(tmp_path / "run")] == ["1"]


def test_a_filesystem_of_fsspec_keeps_a_run_and_gets_the_files_of_its_loggers(tmp_path, fit_in):
    import fsspec
    from fsspec.implementations.dirfs import DirFileSystem

    store = DirFileSystem(str(tmp_path), fsspec.filesystem("file"))
    state = Checkpoint.from_dict({"x": 2})
    result = fit_in(
        "bucket", lambda: train.report({"i": 1}, checkpoint=state), storage_filesystem=store, callbacks=loggers()
    )
    root = tmp_path / "bucket" / "run"
    assert (root / "attempt_1" / "checkpoint_000001" / ".manifest.json").exists()
    again = Result.from_path("bucket/run", storage_filesystem=store)
    assert again.checkpoint.to_dict() == result.checkpoint.to_dict() == {"x": 2}
    assert [row["i"] for row in json_lines(root)] == [1]
    assert [row["i"] for row in table(root)] == ["1"]
    assert len(list(root.glob("events.out.tfevents.*.paceline"))) == 1
