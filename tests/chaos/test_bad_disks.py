"""Disks that are full, fail, or alter what they were given, at random points of whole runs.

`Faults` answers in the place of the disk; one that is really full is tried in tests/train/test_disk.py.
"""

import errno
import random
import signal

import oracle
import pytest
from lives import Script, count_lines

from paceline._control.events import CheckpointBroken
from paceline.testing import Faults
from paceline.train import DataParallelTrainer

STEPS = 8
ERRORS = (errno.ENOSPC, errno.EIO, errno.EDQUOT)


def choose_failure(dice):
    """One write, or another act on files, that fails once: of a worker that stages, or of the driver that commits."""
    number = dice.choice(range(2, STEPS + 1, 2))
    error = dice.choice(ERRORS)
    staged = f".staging/*/checkpoint_{number:06d}"
    what, path, act, at_byte = dice.choice(
        (
            ("a worker's write", f"{staged}/rank_{dice.choice((0, 1))}/state.bin", None, dice.randrange(40)),
            ("a worker's write", f"{staged}/rank_{dice.choice((0, 1))}/state.json", None, None),
            ("a worker's write", f"{staged}/rank_{dice.choice((0, 1))}", "make_dir", None),
            ("the driver's commit", f"*checkpoint_{number:06d}*", "sync_dir", None),
            ("the driver's commit", f"*checkpoint_{number:06d}*.manifest.json*", None, None),
            ("the driver's commit", f"checkpoint_{number:06d}*", "rename", None),
        )
    )
    return f"{errno.errorcode[error]} in {what}", path, error, act, at_byte


@pytest.mark.seeds(40)
def test_a_disk_that_fails_once_at_a_random_point(seed, survive):
    name, path, error, act, at_byte = choose_failure(random.Random(f"disks {seed}"))
    faults = Faults(seed=seed).fail_write(path, error=error, act=act, at_byte=at_byte)
    with survive(name, faults) as (path, _):
        assert {kind for _, kind in oracle.causes(path)} <= {"storage"}


@pytest.mark.seeds(12)
@pytest.mark.parametrize("how", ["flip", "truncate", "zero"])
def test_a_newest_checkpoint_that_was_altered_is_passed_over(seed, how, survive):
    dice = random.Random(f"corrupt {seed} {how}")
    number = dice.choice((2, 6))  # Those that are committed when their report returns.
    file = dice.choice(("state.bin", "state.json", "*"))
    faults = Faults(seed=seed).corrupt(file, how, after=number).kill(dice.choice((0, 1)), ("step", number + 1))
    name = f"newest checkpoint corrupted ({how}), rank killed"
    with survive(name, faults, num_to_keep=3, broken=True) as (path, trial):
        assert [event.seq for event in oracle.history(path, CheckpointBroken)] == [number]
        trial.lost = "the corrupted checkpoint"


@pytest.mark.seeds(30)
def test_a_journal_damaged_between_two_drivers(tmp_path, temporary, seed, undisturbed, fault_table):
    expected = undisturbed(DataParallelTrainer, oracle.small, STEPS)
    dice = random.Random(f"journal {seed}")
    how = dice.choice(("cut", "deleted", "altered"))
    script = Script(tmp_path, faults=f"Faults().lose_driver(after={dice.randint(2, 34)})", steps=STEPS)
    with fault_table.trying(f"journal {how} between two drivers") as trial:
        assert script.run() == -signal.SIGKILL, script.stderr
        assert count_lines(script.path) >= 2
        committed = max(
            (int(path.parent.name.rpartition("_")[2]) for path in script.path.glob("checkpoint_*/.manifest.json")),
            default=0,
        )
        damage(script.path / "journal.jsonl", how, dice)
        assert script.run() == 0, script.stderr
        assert oracle.weights_of(script.path) == expected.weights
        for rank in (0, 1):
            rows = oracle.reports(script.path, rank)
            seqs = [seq for seq, _ in rows]
            assert sorted(set(seqs)) == seqs, "each once, in order"
            assert [row for row in expected.reports[rank] if row in rows] == rows, "the same values"
            assert set(range(committed + 1, STEPS + 1)) <= set(seqs), "nothing after the newest checkpoint is missing"
            if rows != expected.reports[rank]:
                assert how != "deleted", "the workers' own files have them all"
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
