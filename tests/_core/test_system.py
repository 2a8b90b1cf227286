"""What the system says of a process, against processes that do what is to be said."""

import os
import signal
import subprocess
import sys

import pytest

from paceline._core import system

ECHO = "import sys\nfor line in sys.stdin: exec(line); print('done', flush=True)"
BUSY = "import time\nwhile time.process_time() < 0.4: pass"


@pytest.fixture
def process():
    with subprocess.Popen([sys.executable, "-c", ECHO], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as it:
        yield it
        it.kill()


def asked(process, line):
    process.stdin.write(line + "\n")
    process.stdin.flush()
    return process.stdout.readline()


def test_a_waiting_process_differs_from_a_stopped_one(process):
    asked(process, "pass")
    assert system.read_process_status(process.pid).state in ("S", "R")
    os.kill(process.pid, signal.SIGSTOP)
    os.waitpid(process.pid, os.WUNTRACED)
    assert system.read_process_status(process.pid).state == "T"
    assert not system.read_process_status(process.pid).is_traced
    os.kill(process.pid, signal.SIGCONT)


def test_the_time_that_a_process_and_its_children_take_is_counted(process):
    asked(process, "import subprocess, sys, time")
    before = system.read_process_status(process.pid).cpu_s
    asked(process, "end = time.process_time() + 0.3")
    asked(process, "while time.process_time() < end: pass")
    mine = system.read_process_status(process.pid).cpu_s
    assert mine - before >= 0.2
    asked(process, f"subprocess.run([sys.executable, '-c', {BUSY!r}], check=True)")
    assert system.read_process_status(process.pid).cpu_s - mine >= 0.3


def test_written_bytes_are_counted_and_a_process_that_is_gone_has_no_status(process):
    before = system.read_process_status(process.pid).num_bytes
    asked(process, "open('/dev/null', 'wb').write(bytes(3 << 20))")
    assert system.read_process_status(process.pid).num_bytes - before >= 3 << 20
    process.kill()
    process.wait()
    assert system.read_process_status(process.pid) is None
