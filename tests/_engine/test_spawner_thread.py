"""Processes started by a short-lived thread live until the whole process ends."""

import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from paceline._core.system import is_linux
from paceline._engine.local.launchers import run_on_spawner_thread

BOUND = """
import sys, time
from paceline._core import system
system.die_with_parent()
print("ready", flush=True)
time.sleep(1000)
"""


def start_bound() -> subprocess.Popen[bytes]:
    process = subprocess.Popen([sys.executable, "-c", BOUND], stdout=subprocess.PIPE)
    assert process.stdout is not None
    process.stdout.readline()
    return process


@pytest.mark.skipif(not is_linux(), reason="elsewhere no system tells a process of its parent's end")
@pytest.mark.parametrize("lasting", [False, True])
def test_a_process_does_not_end_with_the_thread_that_started_it(lasting: bool) -> None:
    started: list[subprocess.Popen[bytes]] = []
    task = 0

    def work() -> None:
        nonlocal task
        task = threading.get_native_id()
        started.append(run_on_spawner_thread(start_bound) if lasting else start_bound())

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    while Path(f"/proc/self/task/{task}").exists():
        os.sched_yield()
    (process,) = started
    with process:
        if lasting:
            with pytest.raises(subprocess.TimeoutExpired):
                process.wait(0.5)
            process.kill()
        else:  # What is feared does happen.
            assert process.wait(60) == -9


def test_an_error_is_raised_in_the_calling_thread_and_the_main_thread_starts_processes_itself() -> None:
    raised: list[BaseException] = []

    def work() -> None:
        try:
            run_on_spawner_thread(lambda: 1 / 0)
        except ZeroDivisionError as error:
            raised.append(error)

    for _ in range(2):
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
    assert len(raised) == 2
    assert run_on_spawner_thread(threading.current_thread) is threading.main_thread()
