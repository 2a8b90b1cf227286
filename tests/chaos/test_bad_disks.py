"""Disks that are full, fail, or alter what they were given, at random points of whole runs.

Where a disk is really full is tried on a small tmpfs; elsewhere `Faults` answers in its place.
"""

import errno
import os
import random
import signal
import subprocess

import oracle
import pytest
from lives import Script, num_lines

from paceline._control import journal
from paceline._control.events import CheckpointBroken
from paceline._storage.layout import Layout
from paceline.testing import Faults
from paceline.train import DataParallelTrainer

STEPS = 8
ERRORS = (errno.ENOSPC, errno.EIO, errno.EDQUOT)


def failing(dice):
    """One write, or another act on files, that fails once: of a worker that stages, or of the driver that commits."""
    number = dice.choice(range(2, STEPS + 1, 2))
    error = dice.choice(ERRORS)
    staged = f".staging/*/checkpoint_{number:06d}"
    what, path, act, at_byte = dice.choice(
        (
            ("a worker's write", f"{staged}/rank_{dice.choice((0, 1))}/state.bin", None, dice.randrange(40)),
            ("a worker's write", f"{staged}/rank_{dice.choice((0, 1))}/state.json", None, None),
            ("a worker's write", f"{staged}/rank_{dice.choice((0, 1))}", "make_dir", None),
            ("a worker's write", f"{staged}/rank_{dice.choice((0, 1))}", "sync_dir", None),
            ("the driver's commit", f"*checkpoint_{number:06d}*.manifest.json*", None, None),
            ("the driver's commit", f"checkpoint_{number:06d}*", "rename", None),
        )
    )
    return f"{errno.errorcode[error]} in {what}", path, error, act, at_byte


@pytest.mark.seeds(40, few=2)
def test_a_disk_that_fails_once_at_a_random_point(tmp_path, temporary, seed, undisturbed, fault_table):
    expected = undisturbed(DataParallelTrainer, oracle.small, STEPS)
    name, path, error, act, at_byte = failing(random.Random(f"disks {seed}"))
    faults = Faults(seed=seed).fail_write(path, error=error, act=act, at_byte=at_byte)
    surroundings = oracle.Surroundings()
    with fault_table.trying(name) as trial:
        result = faults.applied_to(oracle.trainer_of(DataParallelTrainer, oracle.small, tmp_path, STEPS)).fit()
        assert faults.unfired(result.path) == [], str(faults)
        surroundings.assert_nothing_is_left()
        oracle.assert_same(result.path, expected)
        assert {kind for _, kind in oracle.causes(result.path)} <= {"storage"}
        trial.seconds = oracle.worst_stand(result.path, faults)


@pytest.mark.seeds(12)
@pytest.mark.parametrize("how", ["flip", "truncate", "zero"])
def test_a_newest_checkpoint_that_was_altered_is_passed_over(tmp_path, temporary, seed, how, undisturbed, fault_table):
    expected = undisturbed(DataParallelTrainer, oracle.small, STEPS)
    dice = random.Random(f"corrupt {seed} {how}")
    number = dice.choice((2, 6))  # Those that are committed when their report returns.
    file = dice.choice(("state.bin", "state.json", "*"))
    faults = Faults(seed=seed).corrupt(file, how, after=number).kill(dice.choice((0, 1)), ("step", number + 1))
    with fault_table.trying(f"newest checkpoint altered ({how}), rank killed") as trial:
        trainer = oracle.trainer_of(DataParallelTrainer, oracle.small, tmp_path, STEPS, num_to_keep=3)
        result = faults.applied_to(trainer).fit()
        assert faults.unfired(result.path) == []
        passed_over = [e.seq for e in journal.read(Layout(tmp_path / "run").journal) if isinstance(e, CheckpointBroken)]
        assert passed_over == [number]
        oracle.assert_same(result.path, expected, broken=True)
        trial.seconds = oracle.worst_stand(result.path, faults)
        trial.lost = "the altered checkpoint"


@pytest.mark.seeds(30)
def test_a_journal_damaged_between_two_drivers(tmp_path, temporary, seed, undisturbed, fault_table):
    expected = undisturbed(DataParallelTrainer, oracle.small, STEPS)
    dice = random.Random(f"journal {seed}")
    how = dice.choice(("cut", "deleted", "altered"))
    script = Script(tmp_path, faults=f"Faults().lose_driver(after={dice.randint(2, 34)})", steps=STEPS)
    with fault_table.trying(f"journal {how} between two drivers") as trial:
        assert script.lived() == -signal.SIGKILL, script.said
        assert num_lines(script.path) >= 2
        committed = max(
            (int(path.parent.name.rpartition("_")[2]) for path in script.path.glob("checkpoint_*/.manifest.json")),
            default=0,
        )
        damage(script.path / "journal.jsonl", how, dice)
        assert script.lived() == 0, script.said
        assert oracle.weights_of(script.path) == expected.weights
        for rank in (0, 1):
            rows = oracle.reports(script.path, rank)
            seqs = [seq for seq, _ in rows]
            assert sorted(set(seqs)) == seqs, "each once, in order"
            assert [row for row in expected.reports[rank] if row in rows] == rows, "the same values"
            assert set(range(committed + 1, STEPS + 1)) <= set(seqs), "nothing after the newest checkpoint is missing"
            if rows != expected.reports[rank]:
                trial.lost = "metrics of the damaged lines, up to the newest checkpoint"


def damage(path, how, dice):
    data = bytearray(path.read_bytes())
    if how == "deleted":
        path.unlink()
        return
    at = dice.randrange(len(data))
    if how == "cut":
        del data[at:]
    else:
        data[at] ^= 1 << dice.randrange(8)
    path.write_bytes(data)


@pytest.fixture
def small_disk(tmp_path, fault_table):
    path = tmp_path / "runs"
    path.mkdir()
    made = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", str(path)], capture_output=True, text=True)
    if made.returncode != 0:
        fault_table.skip(FULL, "a tmpfs cannot be mounted here")
    yield path
    subprocess.run(["umount", "-l", str(path)], check=True)


FULL = "disk really full at a random moment, then freed"


@pytest.mark.seeds(8)
def test_a_disk_that_is_really_full_and_later_freed(
    tmp_path, temporary, small_disk, seed, undisturbed, fault_table, processes_in
):
    steps = 40
    expected = undisturbed(DataParallelTrainer, oracle.small, steps)
    dice = random.Random(f"full {seed}")
    line = dice.randint(1, 60)
    config = {"pace_s": 0.005, "every": 4}
    script = Script(tmp_path, "paced", steps=steps, max_failures=0, config=config)
    with fault_table.trying(FULL):
        process = script.started()
        script.await_lines(line, process)
        fill(small_disk / "filler", dice.choice((0, 100, 3000)))
        code = process.wait(60)
        assert code != 0, "it cannot have ended on a full disk"
        assert "No space left on device" in script.said
        assert "During handling of the above exception" not in script.said, "one problem, told once"
        (small_disk / "filler").unlink()
        assert script.lived() == 0, script.said
        oracle.assert_same(script.path, expected, weights=oracle.weights_of(script.path))


def fill(path, num_left):
    """Take all of a disk but so many bytes."""
    with path.open("wb", buffering=0) as file:
        for size in (1 << 16, 4096, 512, 64, 1):
            try:
                while True:
                    file.write(b"x" * size)
            except OSError as problem:
                if problem.errno != errno.ENOSPC:
                    raise
        if num_left:
            os.ftruncate(file.fileno(), file.tell() - num_left)
