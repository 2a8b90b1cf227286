"""What a worker says that it uses."""

import os
import subprocess
import sys
import threading
import time
from contextlib import closing
from types import SimpleNamespace

import pytest

from paceline._core.time_accounting import USER_CODE, TimeAccounting
from paceline._engine.messages import GpuUsage
from paceline._worker import usage
from paceline._worker.usage import UsageMeter


def context(devices=()):
    begin = SimpleNamespace(rank=3, devices=devices)
    return SimpleNamespace(begin=begin, time_accounting=TimeAccounting(), num_reports=7)


def test_it_tells_who_it_is_and_what_it_holds():
    found = UsageMeter(context()).measure()
    assert (found.rank, found.num_reports, found.pid, found.device, found.gpus) == (3, 7, os.getpid(), "cpu", ())
    assert found.rss_bytes > 10_000_000
    assert found.cpu_s > 0
    shared = UsageMeter(context(), shared=True).measure()
    assert shared.cpu_s < found.cpu_s, "what the process did before counts only where it is the worker's own"


def test_processes_that_it_started_count_with_it():
    alone = UsageMeter(context()).measure()
    work = "held = bytearray(80_000_000)\nprint(flush=True)\nwhile True: pass"
    with subprocess.Popen([sys.executable, "-c", work], stdout=subprocess.PIPE) as child:
        try:
            child.stdout.readline()
            while (found := UsageMeter(context()).measure()).cpu_s < alone.cpu_s + 0.2:
                time.sleep(0.01)
        finally:
            child.kill()
    assert found.rss_bytes > alone.rss_bytes + 70_000_000


def test_parts_never_sum_to_more_than_the_whole_after_rounding():
    made = context()
    with made.time_accounting.at(USER_CODE):
        for _ in range(200):
            found = UsageMeter(made).measure()
            assert found.setup_s + found.data_s + found.report_s + found.checkpoint_s <= found.wall_s


def test_gpus_that_do_not_answer_hold_nobody_up(monkeypatch):
    answers = threading.Event()

    class Stuck:
        def use(self, name):
            answers.wait()

    monkeypatch.setattr(usage.Nvml, "open", lambda: Stuck())
    made = UsageMeter(context(devices=(0,)))
    for _ in range(2):
        assert made.measure().gpus == (), "it returns at all"
    made.close()
    answers.set()


class Driver:
    def use(self, name):
        return GpuUsage(int(name), 10, 100, 0.5)


@pytest.mark.parametrize("driver", [Driver(), None])
def test_gpus_are_those_that_were_given_by_the_names_that_the_environment_has_for_them(monkeypatch, driver):
    """Without a driver nothing is said of them, and no framework is begun."""
    monkeypatch.setattr(usage.Nvml, "open", lambda: driver)
    monkeypatch.setattr(usage, "this_machine", lambda: SimpleNamespace(gpus=("4", "6", "7")))
    monkeypatch.setattr(usage, "_ANSWER_S", 60.0)
    with closing(UsageMeter(context(devices=(1, 2)))) as made:
        found = made.measure()
    assert [gpu.index for gpu in found.gpus] == ([6, 7] if driver else [])
    assert found.device == "cuda:1"


@pytest.mark.skipif(usage.Nvml.open() is None, reason="there is no NVIDIA driver here")
def test_the_driver_tells_of_its_first_gpu():
    found = usage.Nvml.open().use("0")
    assert found.index == 0
    assert 0 < found.used_bytes <= found.total_bytes
    assert -1.0 <= found.busy <= 1.0
