"""What saves take, of several ranks and saves, of those that are given up, and of journals that anybody wrote."""

import math

import msgspec
import pytest

from paceline._control.events import Committed
from paceline._core.checkpoint_records import CheckpointRecord, SaveTimes, StagedFiles
from paceline._engine.messages import CheckpointStaged
from paceline._view.model import SaveBreakdown, encode
from paceline._view.save_history import MIN_BYTES, SaveHistory


def staged(seq, *times, attempt=1):
    for rank, each in enumerate(times):
        yield CheckpointStaged(attempt, seq, StagedFiles(rank, (), times=each))


def committed(seq, took_s=0.0, attempt=1):
    yield Committed(CheckpointRecord(seq, f"checkpoint_{seq:06}", attempt, msgspec.Raw(b"{}")), took_s)


def build(*groups):
    history = SaveHistory()
    for group in groups:
        for event in group:
            history.add_event(event)
    assert not history._staged, "of what is committed, or never will be, nothing is kept"
    return history.build()


def test_a_save_takes_as_long_as_its_slowest_rank_and_the_disk_gets_the_bytes_of_all():
    one = SaveTimes(copy_s=0.5, write_s=1.0, hash_s=0.25, sync_s=1.0, num_bytes=MIN_BYTES)
    other = SaveTimes(copy_s=0.25, write_s=3.0, hash_s=0.5, sync_s=1.0, upload_s=2.0, num_bytes=MIN_BYTES)
    small = SaveTimes(sync_s=1.0, num_bytes=1000)
    saves = build(
        staged(1, one, other),
        staged(1, one),  # Read again from the worker's own file.
        committed(1, 0.5),
        staged(2, one),  # Given up.
        staged(3, small, small),
        committed(3, 1.5),
        staged(4, one, attempt=2),
        committed(4, 1.0, attempt=2),
    )
    assert saves == SaveBreakdown(
        num_saves=3,
        copy_s=1.0 / 3,
        write_s=4.0 / 3,
        hash_s=0.75 / 3,
        sync_s=3.0 / 3,
        upload_s=2.0 / 3,
        commit_s=1.0,
        num_bytes=(3 * MIN_BYTES + 2000) // 3,
        disk_bytes_per_s=3 * MIN_BYTES / 6,
        best_bytes_per_s=max(2 * MIN_BYTES / 4, MIN_BYTES / 2),
    )


def test_saves_that_earlier_versions_made_are_not_counted():
    assert build(staged(1, None), committed(1)) is None


@pytest.mark.parametrize("seconds", [math.inf, -1.0, 1e300, 0.0, 5e-324])
def test_whatever_a_journal_says_can_be_shown(seconds):
    times = SaveTimes(seconds, seconds, seconds, seconds, seconds, 10**30 if seconds else -5)
    saves = build(staged(1, times), committed(1, seconds))
    assert msgspec.json.decode(encode(saves), type=SaveBreakdown) == saves
