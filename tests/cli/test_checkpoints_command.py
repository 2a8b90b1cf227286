"""`paceline checkpoints`: listed, verified, exported; and pruned as a driver would, so that nothing is torn."""

import json
import os
import signal
import subprocess
import sys

import pytest

from paceline._control.recover import history_of
from paceline._core.clock import SystemClock
from paceline._storage.home import Home
from paceline._storage.lease import taken
from paceline.train import Result


def names(ended):
    assert ended.code == 0, ended.err
    return [shown["name"] for shown in json.loads(ended.out)]


def test_they_are_listed_with_what_is_best_and_latest(paceline):
    out = paceline("checkpoints", "complete").out.splitlines()
    assert out[0].split() == ["NAME", "REPORT", "SIZE", "SAVED", "METRICS"]
    assert [line.split()[0] for line in out[1:]] == [f"checkpoint_{seq:06d}" for seq in range(1, 6)]
    assert "latest,best" in out[-1]
    assert names(paceline("checkpoints", "complete", "--json")) == [line.split()[0] for line in out[1:]]


def test_whole_ones_verify_and_broken_files_are_named(paceline, copied):
    run = copied("complete")
    assert paceline("checkpoints", str(run), "--verify").out.endswith("all 5 are whole\n")
    files = sorted(path for path in (run / "checkpoint_000003").iterdir() if not path.name.startswith("."))
    files[0].unlink()
    files[1].write_bytes(files[1].read_bytes()[:-1] + b"!")
    ended = paceline("checkpoints", str(run), "--verify")
    assert ended.code == 1
    assert f"{files[0]}: No such file or directory" in ended.out
    assert f"{files[1]} does not hash to what was written" in ended.out
    assert "1 of 5 broken" in ended.out
    told = json.loads(paceline("checkpoints", str(run), "--verify", "--json").out)
    assert [len(checkpoint["problems"]) for checkpoint in told["checkpoints"]] == [0, 0, 2, 0, 0]
    assert told["ok"] is False


@pytest.mark.parametrize(("name", "step"), [("checkpoint_000002", 2), ("latest", 5), ("best", 5)])
def test_one_is_exported_whole(name, step, paceline, tmp_path):
    ended = paceline("checkpoints", "complete", "--export", name, "out/model")
    assert ended.code == 0, ended.err
    from paceline.train import Checkpoint

    exported = Checkpoint.from_directory(tmp_path / "out" / "model")
    exported.verify()
    assert exported.to_dict()["step"] == step


def test_a_broken_one_is_not_exported_and_nothing_is_left(paceline, copied, tmp_path):
    run = copied("complete")
    file = next(path for path in sorted((run / "checkpoint_000002").iterdir()) if not path.name.startswith("."))
    file.write_bytes(b"other")
    ended = paceline("checkpoints", str(run), "--export", "checkpoint_000002", "out")
    assert ended.code == 1
    assert "checkpoint_000002 is broken, and is not copied" in ended.err
    assert file.name in ended.err
    assert sorted(path.name for path in tmp_path.iterdir()) == ["copies"]


def test_nothing_is_exported_over_what_is_there(paceline, tmp_path):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "file").write_text("mine")
    ended = paceline("checkpoints", "complete", "--export", "latest", "mine")
    assert ended.code == 2
    assert "is there already" in ended.err
    assert [path.name for path in (tmp_path / "mine").iterdir()] == ["file"]
    assert paceline("checkpoints", "complete", "--export", "checkpoint_000009", "new").code == 2


def test_pruning_says_what_it_would_do_and_does_it_only_when_told(paceline, copied):
    run = copied("complete")
    before = sorted(path for path in run.rglob("*"))
    ended = paceline("checkpoints", str(run), "--prune", "--keep", "2")
    assert ended.code == 0
    assert ended.out.count("would remove") == 3
    assert "--yes does it" in ended.out
    assert sorted(path for path in run.rglob("*")) == before
    ended = paceline("checkpoints", str(run), "--prune", "--keep", "2", "--yes")
    assert ended.code == 0, ended.err
    assert names(paceline("checkpoints", str(run), "--json")) == ["checkpoint_000004", "checkpoint_000005"]
    assert sorted(path.name for path in run.glob("checkpoint_*")) == ["checkpoint_000004", "checkpoint_000005"]
    assert paceline("checkpoints", str(run), "--verify").code == 0
    assert paceline("checkpoints", str(run), "--prune", "--keep", "2", "--yes").out.startswith("nothing to remove")


def test_the_newest_and_the_best_stay_whatever_is_asked_for(run_script, paceline, tmp_path):
    source = (
        "from paceline import train\nfrom paceline.train import *\n"
        "def f():\n    for loss in (3, 1, 2, 4, 5):\n"
        "        train.report({'loss': loss}, checkpoint=Checkpoint.from_dict({'loss': loss}))\n"
        "if __name__ == '__main__':\n"
        "    rules = CheckpointConfig(checkpoint_score_attribute='loss', checkpoint_score_order='min')\n"
        "    config = RunConfig(name='run', storage_path='kept', checkpoint_config=rules)\n"
        "    DataParallelTrainer(f, run_config=config).fit()\n"
    )
    assert run_script(source).returncode == 0
    run = str(tmp_path / "kept" / "run")
    assert paceline("checkpoints", run, "--prune", "--keep", "1", "--yes").code == 0
    assert names(paceline("checkpoints", run, "--json")) == ["checkpoint_000002", "checkpoint_000005"]


def test_a_pinned_one_stays(copied, paceline):
    from paceline._control.events import PinsSet
    from paceline.train.drive import Seams, opened

    run = copied("complete")
    with opened(Home.of_path(str(run)), Seams(), print) as (found, _):
        found.journal.append(PinsSet(found.run.attempt, (2,)))
    assert paceline("checkpoints", str(run), "--prune", "--keep", "1", "--yes").code == 0
    assert names(paceline("checkpoints", str(run), "--json")) == ["checkpoint_000002", "checkpoint_000005"]


def test_pruning_is_refused_while_a_driver_holds_the_run(paceline, copied):
    run = copied("complete")
    lease = taken(Home.of_path(str(run)).slot(), ttl_s=30, clock=SystemClock(), say=print)
    try:
        ended = paceline("checkpoints", str(run), "--prune", "--keep", "1", "--yes")
    finally:
        lease.close()
    assert ended.code == 2
    assert "is being written by process" in ended.err
    assert len(names(paceline("checkpoints", str(run), "--json"))) == 5


def test_pruning_a_trial_is_refused_until_its_search_is_complete(paceline, copied):
    search = copied("search")
    whole = (search / "journal.jsonl").read_bytes()
    (search / "journal.jsonl").write_bytes(b"".join(whole.splitlines(keepends=True)[:-1]))
    ended = paceline("checkpoints", str(search / "trial_00000"), "--prune", "--keep", "1", "--yes")
    (search / "journal.jsonl").write_bytes(whole)
    assert ended.code == 2
    assert "is a trial of the search 'search'" in ended.err
    assert paceline("checkpoints", str(search / "trial_00000"), "--prune", "--keep", "1", "--yes").code == 0


CUT_OFF = """
import os, signal, sys
from paceline._storage import commit
from paceline.cli import main

delete = commit.delete
left = int(sys.argv[2])

def delete_some(*arguments):
    global left
    if left == 0:
        os.kill(os.getpid(), signal.SIGKILL)
    left -= 1
    delete(*arguments)

commit.delete = delete_some
main(["checkpoints", sys.argv[1], "--prune", "--keep", "1", "--yes"])
"""


@pytest.mark.parametrize("removed", [0, 2])
def test_pruning_that_is_cut_off_leaves_a_whole_run_and_is_finished_by_the_next_driver(removed, paceline, copied):
    run = copied("complete")
    ended = subprocess.run([sys.executable, "-c", CUT_OFF, str(run), str(removed)], capture_output=True)
    assert ended.returncode == -signal.SIGKILL, ended.stderr
    assert names(paceline("checkpoints", str(run), "--json")) == ["checkpoint_000005"]
    assert len(list(run.glob("checkpoint_*"))) == 5 - removed
    assert Result.from_path(run).checkpoint.to_dict()["step"] == 5
    assert paceline("checkpoints", str(run), "--prune", "--keep", "1", "--yes").code == 0
    assert [path.name for path in run.glob("checkpoint_*")] == ["checkpoint_000005"]


def test_a_run_that_was_killed_is_pruned_and_goes_on_from_what_is_left(paceline, copied, runs):
    run = copied("killed")
    assert paceline("checkpoints", str(run), "--prune", "--keep", "1", "--yes").code == 0
    assert names(paceline("checkpoints", str(run), "--json")) == ["checkpoint_000003"]
    command = [sys.executable, str(runs.script), str(run.parent), "killed", "complete", "0.1"]
    subprocess.run(command, check=True, capture_output=True, cwd=run.parent)
    run_after, _ = history_of(Home.of_path(str(run)).depot_to_read())
    assert [record.seq for record in run_after.checkpoints] == [3, 4, 5]
    assert os.listdir(run / ".lease")


@pytest.mark.parametrize("arguments", ["--prune", "--keep 2", "--prune --keep 0", "--prune --keep 2 --verify"])
def test_half_an_order_is_bad_usage(arguments, paceline):
    assert paceline("checkpoints", "complete", *arguments.split()).code == 2
