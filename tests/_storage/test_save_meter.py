"""Where the time of a save goes: each part is counted, and only for the thread that is measured."""

import threading
from types import SimpleNamespace

import pytest

from paceline._core.checkpoint_records import SaveTimes
from paceline._storage import save_meter
from paceline._storage.save_meter import BusyTime, SaveMeter, add_to_save, attach_meter, measure_save


@pytest.fixture
def clock(monkeypatch):
    clock = SimpleNamespace(now=100.0)
    monkeypatch.setattr(save_meter, "time", SimpleNamespace(perf_counter=lambda: clock.now))
    return clock


def take(clock, seconds):
    clock.now += seconds


def test_time_and_bytes_of_each_part_add_up_also_of_one_that_fails(clock):
    def fail():
        take(clock, 0.5)
        raise OSError("no disk")

    meter = SaveMeter()
    with meter.at("copy"):
        take(clock, 1.0)
    with attach_meter(meter):
        with measure_save("write", 10):
            take(clock, 2.0)
        with pytest.raises(OSError, match="no disk"), measure_save("write"):
            fail()
        add_to_save("hash", 0.125)
        add_to_save("sync", 0.25, 7)
        thread = threading.Thread(target=add_to_save, args=("upload", 9.0))  # Another save.
        thread.start()
        thread.join()
    with measure_save("write", 99):
        take(clock, 4.0)
    assert meter.read() == SaveTimes(copy_s=1.0, write_s=2.5, hash_s=0.125, sync_s=0.25, num_bytes=17)


def test_time_in_which_several_are_busy_counts_once(clock):
    busy = BusyTime()
    for _ in range(2):
        with busy:
            take(clock, 1.0)
            with busy:
                take(clock, 2.0)
            take(clock, 4.0)
        take(clock, 8.0)
    assert busy.seconds == 14.0
