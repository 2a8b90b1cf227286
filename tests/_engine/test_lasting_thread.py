"""Processes that are started by a thread that ends, and that are to be told of the end of the whole process alone."""

import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from paceline._core.system import on_linux
from paceline._engine.local.lasting import from_lasting_thread

BOUND = """
import sys, time
from paceline._core import system
system.die_with_parent()
print("ready", flush=True)
time.sleep(1000)
"""


def _started() -> subprocess.Popen[bytes]:
    process = subprocess.Popen([sys.executable, "-c", BOUND], stdout=subprocess.PIPE)
    assert process.stdout is not None
    process.stdout.readline()
    return process


@pytest.mark.skipif(not on_linux(), reason="elsewhere no system tells a process of its parent's end")
@pytest.mark.parametrize("lasting", [False, True])
def test_a_process_does_not_end_with_the_thread_that_asked_for_it(lasting: bool) -> None:
    started: list[subprocess.Popen[bytes]] = []
    task = 0

    def work() -> None:
        nonlocal task
        task = threading.get_native_id()
        started.append(from_lasting_thread(_started) if lasting else _started())

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    while Path(f"/proc/self/task/{task}").exists():
        os.sched_yield()
    (process,) = started
    try:
        if lasting:
            with pytest.raises(subprocess.TimeoutExpired):
                process.wait(0.5)
        else:  # What is feared does happen.
            assert process.wait(10) == -9
    finally:
        process.kill()
        process.wait()
        assert process.stdout is not None
        process.stdout.close()


def test_what_it_raises_is_raised_where_it_was_asked_for() -> None:
    raised: list[BaseException] = []

    def work() -> None:
        try:
            from_lasting_thread(lambda: 1 / 0)
        except ZeroDivisionError as error:
            raised.append(error)

    for _ in range(2):
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
    assert len(raised) == 2


def test_the_main_thread_starts_processes_itself() -> None:
    assert from_lasting_thread(threading.current_thread) is threading.main_thread()
