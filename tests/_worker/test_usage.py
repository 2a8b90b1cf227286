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
    measured = UsageMeter(context()).measure()
    assert (measured.rank, measured.num_reports, measured.pid) == (3, 7, os.getpid())
    assert (measured.device, measured.gpus) == ("cpu", ())
    assert measured.rss_bytes > 10_000_000
    assert measured.cpu_s > 0
    shared = UsageMeter(context(), shared=True).measure()
    assert shared.cpu_s < measured.cpu_s, "what the process did before counts only where it is the worker's own"


def test_processes_that_it_started_count_with_it():
    alone = UsageMeter(context()).measure()
    work = "held = bytearray(80_000_000)\nprint(flush=True)\nwhile True: pass"
    with subprocess.Popen([sys.executable, "-c", work], stdout=subprocess.PIPE) as child:
        try:
            child.stdout.readline()
            while (measured := UsageMeter(context()).measure()).cpu_s < alone.cpu_s + 0.2:
                time.sleep(0.01)
        finally:
            child.kill()
    assert measured.rss_bytes > alone.rss_bytes + 70_000_000


def test_parts_never_sum_to_more_than_the_whole_after_rounding():
    worker_context = context()
    with worker_context.time_accounting.at(USER_CODE):
        for _ in range(200):
            measured = UsageMeter(worker_context).measure()
            assert measured.setup_s + measured.data_s + measured.report_s + measured.checkpoint_s <= measured.wall_s


def test_gpus_that_do_not_answer_hold_nobody_up(monkeypatch):
    answers = threading.Event()

    class Stuck:
        def use(self, name):
            answers.wait()

    monkeypatch.setattr(usage.Nvml, "open", lambda: Stuck())
    meter = UsageMeter(context(devices=(0,)))
    for _ in range(2):
        assert meter.measure().gpus == (), "it returns at all"
    meter.close()
    answers.set()


class Driver:
    def use(self, name):
        return GpuUsage(int(name), 10, 100, 0.5)


@pytest.mark.parametrize("driver", [Driver(), None])
def test_gpus_are_those_that_were_given_by_the_names_that_the_environment_has_for_them(monkeypatch, driver):
    """Without a driver nothing is reported, and no framework is started."""
    monkeypatch.setattr(usage.Nvml, "open", lambda: driver)
    monkeypatch.setattr(usage, "this_machine", lambda: SimpleNamespace(gpus=("4", "6", "7")))
    monkeypatch.setattr(usage, "_ANSWER_S", 60.0)
    with closing(UsageMeter(context(devices=(1, 2)))) as meter:
        measured = meter.measure()
    assert [gpu.index for gpu in measured.gpus] == ([6, 7] if driver else [])
    assert measured.device == "cuda:1"


@pytest.mark.skipif(usage.Nvml.open() is None, reason="there is no NVIDIA driver here")
def test_the_driver_tells_of_its_first_gpu():
    measured = usage.Nvml.open().use("0")
    assert measured.index == 0
    assert 0 < measured.used_bytes <= measured.total_bytes
    assert -1.0 <= measured.busy <= 1.0
