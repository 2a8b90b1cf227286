"""What each release wrote is opened by this one: read, listed, verified, continued.

A folder here is never changed. A test that fails on one tells that this code no longer reads what is on people's disks.
"""

import json
import math
from collections import Counter

import golden_runs
import msgspec
import numpy as np
import pytest
import torch

from paceline._control import events
from paceline._control.journal import decode_line
from paceline._core.codec import valid_prefix
from paceline._storage.commit import decode_manifest
from paceline._storage.lease import LeaseHolder
from paceline.data.preprocessor import Preprocessor
from paceline.train import Checkpoint, Result, TrainingFailedError
from paceline.tune import ResultGrid, Tuner
from paceline.tune.driver import events as search_events
from paceline.tune.driver.search_storage import SEARCH_CODEC


def run_command(paceline, *arguments):
    code, out, err = paceline(*arguments)
    assert code == 0, err
    return out


def lost(before, after, where=""):
    """What was in a document and is not, or is another, after it was read and written again."""
    if isinstance(before, dict) and isinstance(after, dict):
        for name, value in before.items():
            if name in after:
                yield from lost(value, after[name], f"{where}.{name}")
            else:
                yield f"{where}.{name}"
    elif isinstance(before, list) and isinstance(after, list) and len(before) == len(after):
        for number, (one, other) in enumerate(zip(before, after, strict=True)):
            yield from lost(one, other, f"{where}[{number}]")
    elif before != after:
        yield f"{where}: {before!r} became {after!r}"


def test_every_field_of_every_line_manifest_and_lease_is_read_back(golden):
    for path in [*golden.glob("kinds/*.jsonl"), *golden.rglob("reports/*/*.jsonl"), *golden.rglob("journal.jsonl")]:
        lines = list(valid_prefix(path.read_bytes()))
        assert len(lines) == path.read_bytes().count(b"\n") > 0
        of_search = path.stem == "search" or path.parent.name == "search"
        for line in lines:
            event = SEARCH_CODEC.decode(line) if of_search else decode_line(line, "it")
            after = search_events.encode(event) if of_search else events.encode_event(event)
            assert list(lost(json.loads(line), json.loads(after), str(path))) == []
    for path in [golden / "kinds" / "manifest.json", *golden.rglob(".manifest.json")]:
        before = json.loads(path.read_bytes())
        manifest = as_json(decode_manifest(path.read_bytes(), str(path)))
        assert list(lost(before, {"crc32": before.get("crc32"), **manifest})) == []
    for path in [golden / "kinds" / "lease.json", *golden.rglob(".lease/*.json")]:
        data = path.read_bytes()
        assert list(lost(json.loads(data), as_json(msgspec.json.decode(data, type=LeaseHolder)))) == []


def as_json(value):
    return json.loads(msgspec.json.encode(value))


def test_a_complete_run_has_all_its_metrics_and_checkpoints_and_is_not_run_again(golden):
    result = Result.from_path(golden / "complete")
    assert result.error is None
    assert result.return_value == {"steps": 4}
    assert result.metrics["eval"] == {"acc": 0.5, "top": {"five": 0.5}}
    assert result.metrics["note"] == "läuft ✓"
    table = result.metrics_dataframe
    assert table["step"].tolist() == [1, 2, 3, 4]
    assert table["loss"].tolist() == [1.5, 2.5, 3.5, 4.5], "the mean over both ranks"
    assert table["eval/top/five"].tolist() == [math.inf, 0.5, 0.5, 0.5]
    assert ids_of(result) == Counter(range(golden_runs.NUM_ROWS))
    assert [metrics["step"] for _, metrics in result.best_checkpoints] == [4, 2], "the best last"
    for checkpoint, metrics in result.best_checkpoints:
        checkpoint.verify()
        state = checkpoint.to_dict()
        assert state["step"] == metrics["step"]
        assert state["weights"].tolist() == [sum(range(state["step"] + 1))] * 4
    assert result.checkpoint.to_dict()["step"] == 4
    assert result.checkpoint.get_metadata() == {"kept": "for ever"}
    logs = [(result.log_dir / f"attempt_{attempt}" / "rank_1.log").read_text() for attempt in (1, 2)]
    assert "ValueError: the first attempt fails" in logs[0]
    assert logs[1] == "rank 1 begins at step 2\n"
    assert golden_runs.trainer(golden, "complete", golden / "rows", what="fails").fit().return_value == {"steps": 4}
    assert not (golden / "complete" / "logs" / "attempt_3").exists(), "it is not run again"


def ids_of(result):
    return Counter(number for ids in result.metrics_dataframe_by_rank["ids"] for number in ids)


def test_an_interrupted_run_is_continued_and_every_row_comes_once(golden):
    before = Result.from_path(golden / "interrupted")
    assert before.metrics["step"] == 3
    before.checkpoint.verify()
    result = golden_runs.trainer(golden, "interrupted", golden / "rows").fit()
    assert result.metrics_dataframe["step"].tolist() == [1, 2, 3, 4]
    assert ids_of(result) == Counter(range(golden_runs.NUM_ROWS))
    complete = Result.from_path(golden / "complete").metrics_dataframe_by_rank
    ids = result.metrics_dataframe_by_rank["ids"].tolist()
    assert ids == complete["ids"].tolist(), "the rows come in the order that they had then"
    assert result.checkpoint.to_dict()["weights"].tolist() == [10.0] * 4
    assert (golden / "interrupted" / "logs" / "attempt_2" / "rank_0.log").read_text() == "rank 0 begins at step 2\n"


def test_a_search_is_read_and_its_failed_trial_goes_on(golden):
    grid = ResultGrid.from_path(golden / "search")
    assert (len(grid), grid.num_errors) == (3, 1)
    assert [result.config["x"] for result in grid] == [1, 2, 3]
    assert grid.get_best_result().metrics["loss"] == pytest.approx(1 / 3)
    assert [len(result.metrics_dataframe) for result in grid] == [3, 1, 2]
    assert "this one fails" in str(grid[1].error)
    for result in grid:
        result.checkpoint.verify()
    again = Tuner.restore(golden / "search", golden_runs.trial, resume_errored=True)
    assert len(again.get_results()) == 3
    grid = again.fit()
    assert (len(grid), grid.num_errors) == (3, 0)
    assert [len(result.metrics_dataframe) for result in grid] == [3, 3, 2]
    assert len(golden_runs.tuner(golden).fit()) == 3, "the same space under the same name: nothing is left to do"


def test_a_state_without_a_run_is_read(golden):
    state, expected = Checkpoint.from_directory(golden / "state").to_dict(), golden_runs.state()
    assert list(state) == list(expected)
    for name in ("array", "times"):
        assert state[name].dtype == expected[name].dtype
        np.testing.assert_array_equal(state[name], expected[name])
    for name in ("tensor", "half"):
        assert state[name].dtype == expected[name].dtype
        assert torch.equal(state[name], expected[name])
    assert state["plain"] == expected["plain"]
    scaler = Preprocessor.deserialize((golden / "scaler.json").read_text())
    assert scaler.stats_ == golden_runs.scaler().stats_


def test_the_commands_and_so_the_dashboard_show_them(golden, paceline):
    listed = {run["id"]: run for run in json.loads(run_command(paceline, "ls", golden, "--json"))}
    complete, interrupted, search = (listed[name] for name in ("complete", "interrupted", "search"))
    assert (complete["state"], interrupted["state"], search["state"]) == ("finished", "lost", "finished")
    assert (complete["attempt"], complete["num_reports"], complete["num_checkpoints"]) == (2, 4, 2)
    assert (complete["num_failures"], complete["best"]["value"]) == (1, 1.5)
    assert (interrupted["num_reports"], interrupted["num_checkpoints"]) == (3, 1)
    assert (search["num_reports"], search["num_failures"]) == (3, 1)
    for name in ("complete", "interrupted"):
        detail = json.loads(run_command(paceline, "show", golden / name, "--json"))
        assert len(detail["attempts"]) == listed[name]["attempt"]
        assert detail["checkpoints"][0]["name"] == "checkpoint_000002"
        assert {"loss", "eval/acc"} <= set(detail["metric_names"])
        assert (detail["config"]["lr"], detail["scaling"]["num_workers"]) == (0.1, 2)
        assert detail["environment"]["packages"]["paceline"]
        assert "def training" in detail["code"]["sources"]["golden_runs.py"]
        assert detail["timeline"]
    assert "ValueError: the first attempt fails" in run_command(paceline, "show", golden / "complete")
    assert "loss" in run_command(paceline, "show", golden / "search")
    assert run_command(paceline, "checkpoints", golden / "complete", "--verify").endswith("all 2 are intact\n")
    rows = run_command(paceline, "metrics", golden / "complete", "--csv", "-").splitlines()
    assert len(rows) == 5
    assert "eval/acc" in rows[0]
    assert run_command(paceline, "logs", golden / "complete")


def test_a_run_lives_and_is_resumed_in_a_place_with_an_odd_name(tmp_path, paceline):
    place, name = tmp_path / "läufe über", "运行 1 'a' \"b\" %s {x} [y]*"
    rows = golden_runs.HERE / golden_runs.RELEASES[-1] / "rows"
    with pytest.raises(TrainingFailedError, match="the first attempt fails"):
        golden_runs.trainer(place, name, rows, what="fails", max_failures=0).fit()
    result = golden_runs.trainer(place, name, rows, what="fails", max_failures=0).fit()
    assert result.path == str(place / name)
    assert ids_of(result) == Counter(range(golden_runs.NUM_ROWS))
    assert (result.log_dir / "attempt_2" / "rank_0.log").read_text() == "rank 0 begins at step 2\n"
    assert Result.from_path(place / name).checkpoint.to_dict()["step"] == 4
    assert name in run_command(paceline, "show", place / name)
    assert name in run_command(paceline, "ls", place)
    assert run_command(paceline, "checkpoints", place / name, "--verify").endswith("all 2 are intact\n")
