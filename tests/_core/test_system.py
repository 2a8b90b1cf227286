"""What the system says of a process, against processes that do what is to be said."""

import os
import signal
import subprocess
import sys

import pytest

from paceline._core import system

ECHO = "import sys\nfor line in sys.stdin: exec(line); print('done', flush=True)"
BUSY = "import time\nwhile time.process_time() < 0.4: pass\nprint(flush=True)\ninput()"


@pytest.fixture
def process():
    with subprocess.Popen([sys.executable, "-c", ECHO], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as it:
        yield it
        it.kill()


def ask(process, line):
    process.stdin.write(line + "\n")
    process.stdin.flush()
    return process.stdout.readline()


def test_a_waiting_process_differs_from_a_stopped_one(process):
    ask(process, "pass")
    assert system.read_process_status(process.pid).state in ("S", "R")
    os.kill(process.pid, signal.SIGSTOP)
    os.waitpid(process.pid, os.WUNTRACED)
    assert system.read_process_status(process.pid).state == "T"
    assert not system.read_process_status(process.pid).is_traced
    os.kill(process.pid, signal.SIGCONT)


def test_the_time_that_a_process_and_its_children_take_is_counted(process):
    ask(process, "import subprocess, sys, time")
    before = system.read_process_status(process.pid).cpu_s
    ask(process, "end = time.process_time() + 0.3")
    ask(process, "while time.process_time() < end: pass")
    mine = system.read_process_status(process.pid).cpu_s
    assert mine - before >= 0.2
    pipes = "stdin=subprocess.PIPE, stdout=subprocess.PIPE"
    ask(process, f"child = subprocess.Popen([sys.executable, '-c', {BUSY!r}], {pipes}); child.stdout.readline()")
    assert system.read_process_status(process.pid).cpu_s - mine >= 0.3, "of one that still runs"
    ask(process, "child.communicate(b'1')")
    assert system.read_process_status(process.pid).cpu_s - mine >= 0.3, "and of one that has ended"


def test_written_bytes_are_counted_and_a_process_that_is_gone_has_no_status(process):
    before = system.read_process_status(process.pid).num_bytes
    ask(process, "open('/dev/null', 'wb').write(bytes(3 << 20))")
    assert system.read_process_status(process.pid).num_bytes - before >= 3 << 20
    process.kill()
    process.wait()
    assert system.read_process_status(process.pid) is None
