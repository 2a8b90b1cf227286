"""The same commands on runs that are kept in an object store: a real server, real runs, no spool to help."""

import csv
import io
import json
import shutil
import subprocess
import sys
import uuid

import msgspec
import pytest

from paceline._storage.address import open_store_at
from paceline._view.model import RunSnapshot, Summary
from paceline.train import Checkpoint
from servers import BUCKET


@pytest.fixture
def stored(s3_environment, runs, tmp_path, monkeypatch):
    """A complete run in a store, whose spool is gone: the address of its storage path."""
    monkeypatch.setenv("PACELINE_SPOOL_PATH", str(tmp_path / "spool"))
    root = f"s3://{BUCKET}/{uuid.uuid4().hex[:8]}"
    command = [sys.executable, str(runs.script), root, "complete", "complete", "0.1", "plain"]
    subprocess.run(command, cwd=tmp_path, check=True, capture_output=True)
    shutil.rmtree(tmp_path / "spool")
    return root


@pytest.mark.slow
def test_a_run_in_a_store_is_listed_shown_verified_exported_and_pruned(stored, paceline, tmp_path, monkeypatch):
    run = f"{stored}/complete"
    (found,) = msgspec.json.decode(paceline("ls", stored, "--json").out, type=list[Summary])
    assert (found.id, found.state, found.num_reports) == ("complete", "finished", 5)
    detail = msgspec.json.decode(paceline("show", run, "--json").out, type=RunSnapshot)
    assert [shown.seq for shown in detail.checkpoints if shown.kept] == [1, 2, 3, 4, 5]
    rows = list(csv.DictReader(io.StringIO(paceline("metrics", run, "--csv", "-").out)))
    assert [row["step"] for row in rows] == ["1", "2", "3", "4", "5"]
    assert paceline("logs", run, "--rank", "0", "-n", "1").out == "step 5 loss 0.200\n"
    assert paceline("checkpoints", run, "--verify").out.endswith("all 5 are intact\n")
    assert paceline("checkpoints", run, "--export", "best", "best").code == 0
    assert Checkpoint.from_directory(tmp_path / "best").to_dict()["step"] == 5

    assert paceline("checkpoints", run, "--prune", "--keep", "2", "--yes").code == 0
    left = [shown["name"] for shown in json.loads(paceline("checkpoints", run, "--json").out)]
    assert left == ["checkpoint_000004", "checkpoint_000005"]
    keys = {
        entry.key.split("/")[1] for entry in open_store_at(run).list_entries() if entry.key.startswith("attempt_1/")
    }
    assert keys == set(left)

    store = open_store_at(run)
    key = "attempt_1/checkpoint_000004/state.json"
    store.write(key, store.read(key)[:-1] + b"!")
    result = paceline("checkpoints", run, "--verify")
    assert result.code == 1
    assert "checkpoint_000004/state.json has a wrong hash" in result.out
    assert paceline("checkpoints", run, "--export", "checkpoint_000004", "broken").code == 1
    assert not (tmp_path / "broken").exists()

    monkeypatch.setenv("PACELINE_STORAGE_PATH", stored)
    assert paceline("show", "complete").out.startswith("complete  finished\n")
    result = paceline("show", f"{stored}/missing")
    assert (result.code, f"there is no run in {stored}/missing" in result.err) == (2, True)
    store.delete_all("journal")
    (found,) = msgspec.json.decode(paceline("ls", stored, "--json").out, type=list[Summary])
    assert (found.id, found.state) == ("complete", "lost"), "found by its checkpoints"
    assert "checkpoint_000005" in paceline("show", run).out
