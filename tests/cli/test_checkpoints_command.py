"""`paceline checkpoints`: verified, exported, and pruned as a driver would, so that nothing is torn."""

import json
import signal
import subprocess
import sys

import pytest

from paceline._control.events import PinsSet
from paceline._storage.run_location import RunLocation
from paceline.train import Checkpoint, Result
from paceline.train.driver.run_directory import open_run
from paceline.train.driver.run_spec import RunEnvironment


def names(result):
    assert result.code == 0, result.err
    return [shown["name"] for shown in json.loads(result.out)]


def test_broken_files_are_named_and_a_broken_checkpoint_is_not_exported(paceline, copy_run, tmp_path):
    run = copy_run("resnet")
    files = sorted(path for path in (run / "checkpoint_000003").iterdir() if not path.name.startswith("."))
    files[0].unlink()
    files[1].write_bytes(files[1].read_bytes()[:-1] + b"!")
    result = paceline("checkpoints", str(run), "--verify")
    assert result.code == 1
    assert f"{files[0]}: No such file or directory" in result.out
    assert f"{files[1]} has a wrong hash" in result.out
    assert "1 of 5 broken" in result.out
    verified = json.loads(paceline("checkpoints", str(run), "--verify", "--json").out)
    assert [len(checkpoint["problems"]) for checkpoint in verified["checkpoints"]] == [0, 0, 2, 0, 0]
    assert verified["ok"] is False
    result = paceline("checkpoints", str(run), "--export", "checkpoint_000003", "out")
    assert result.code == 1
    assert "checkpoint_000003 is broken, not copied" in result.err
    assert files[1].name in result.err
    assert [path.name for path in tmp_path.iterdir()] == ["copies"]


def test_a_checkpoint_is_exported_whole_and_never_over_another_file(paceline, odd_run, tmp_path):
    for name, step in (("checkpoint_000003", 3), ("latest", 5), ("best", 2)):
        result = paceline("checkpoints", str(odd_run), "--export", name, f"out/{name}")
        assert result.code == 0, result.err
        exported = Checkpoint.from_directory(tmp_path / "out" / name)
        exported.verify()
        assert exported.to_dict()["step"] == step
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "file").write_text("mine")
    paceline("checkpoints", "resnet", "--export", "latest", "mine").assert_refused("already exists")
    assert [path.name for path in (tmp_path / "mine").iterdir()] == ["file"]
    assert paceline("checkpoints", "resnet", "--export", "checkpoint_000009", "new").code == 2


def test_pruning_keeps_the_newest_the_best_and_pinned_ones_and_only_acts_with_yes(paceline, copy_run, odd_run):
    run = copy_run(odd_run)
    with open_run(RunLocation.from_path(str(run)), RunEnvironment(), print) as (found, _):
        found.journal.append(PinsSet(found.run.attempt, (3,)))
    before = sorted(run.rglob("*"))
    result = paceline("checkpoints", str(run), "--prune", "--keep", "1")
    assert result.code == 0
    assert result.out.count("would remove") == 2
    assert sorted(run.rglob("*")) == before
    result = paceline("checkpoints", str(run), "--prune", "--keep", "1", "--yes")
    assert result.code == 0, result.err
    kept = ["checkpoint_000002", "checkpoint_000003", "checkpoint_000005"]
    assert names(paceline("checkpoints", str(run), "--json")) == kept
    assert sorted(path.name for path in run.glob("checkpoint_*")) == kept
    assert paceline("checkpoints", str(run), "--verify").code == 0
    assert paceline("checkpoints", str(run), "--prune", "--keep", "1", "--yes").out.startswith("nothing to remove")


def test_pruning_is_refused_while_a_driver_holds_the_run(paceline, copy_run):
    run = copy_run("resnet")
    with open_run(RunLocation.from_path(str(run)), RunEnvironment(), print):
        result = paceline("checkpoints", str(run), "--prune", "--keep", "1", "--yes")
    result.assert_refused("is being written by process")
    assert len(names(paceline("checkpoints", str(run), "--json"))) == 5


def test_pruning_a_trial_is_refused_until_its_search_is_complete(paceline, copy_run):
    search = copy_run("sweep")
    whole = (search / "journal.jsonl").read_bytes()
    (search / "journal.jsonl").write_bytes(b"".join(whole.splitlines(keepends=True)[:-1]))
    result = paceline("checkpoints", str(search / "trial_00000"), "--prune", "--keep", "1", "--yes")
    (search / "journal.jsonl").write_bytes(whole)
    result.assert_refused("is a trial of the search 'sweep'")
    assert paceline("checkpoints", str(search / "trial_00000"), "--prune", "--keep", "1", "--yes").code == 0


PRUNE_AND_DIE = """
import os, signal, sys
from paceline._storage import commit
from paceline.cli import main

set_aside = commit.set_aside
left = int(sys.argv[2])

def set_some_aside(*arguments):
    global left
    if left == 0:
        os.kill(os.getpid(), signal.SIGKILL)
    left -= 1
    return set_aside(*arguments)

commit.set_aside = set_some_aside
main(["checkpoints", sys.argv[1], "--prune", "--keep", "1", "--yes"])
"""


@pytest.mark.parametrize("removed", [pytest.param(0, marks=pytest.mark.slow), 2])
def test_pruning_that_is_killed_leaves_a_whole_run_and_the_next_driver_finishes_it(removed, paceline, copy_run):
    run = copy_run("resnet")
    result = subprocess.run([sys.executable, "-c", PRUNE_AND_DIE, str(run), str(removed)], capture_output=True)
    assert result.returncode == -signal.SIGKILL, result.stderr
    assert names(paceline("checkpoints", str(run), "--json")) == ["checkpoint_000005"]
    assert len(list(run.glob("checkpoint_*"))) == 5 - removed
    assert Result.from_path(run).checkpoint.to_dict()["step"] == 5
    assert paceline("checkpoints", str(run), "--prune", "--keep", "1", "--yes").code == 0
    assert [path.name for path in run.glob("checkpoint_*")] == ["checkpoint_000005"]
