"""A script as people run it, in a process of its own: started, watched by the journal it writes, run again.

What happens to it from outside is the test's to do: a signal, a second one beside it, a file taken away between two
of its lives.
"""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from paceline._control.events import Reported, WorkerReady
from written_runs import read_events

SCRIPT = f"""
import json, os, sys
sys.path.insert(0, {str(Path(__file__).parent)!r})
import cloudpickle
import oracle
from paceline.testing import At, Faults
from paceline.train import DataParallelTrainer

cloudpickle.register_pickle_by_value(oracle)
function, options = getattr(oracle, sys.argv[1]), json.loads(sys.argv[2])
os.environ["DRIVER_PID"] = str(os.getpid())  # not in the configuration: a script that runs again asks for the same run
trainer = oracle.trainer_of(DataParallelTrainer, function, "runs", **options)
faults = eval(sys.argv[3], {{"At": At, "Faults": Faults}})
(faults.applied_to(trainer) if faults.all else trainer).fit()
"""


class Script:
    """`options` are those of `oracle.trainer_of`; `faults` is an expression."""

    def __init__(self, directory, function="small", faults="Faults()", env=None, **options):
        self.path = directory / "runs" / "run"
        self._directory = directory
        self._env = {**os.environ, "TMPDIR": str(directory / "tmp"), **(env or {})}
        (directory / "tmp").mkdir(exist_ok=True)
        (directory / "script.py").write_text(SCRIPT)
        self._command = [sys.executable, "script.py", function, json.dumps(options), faults]

    def start(self):
        with (self._directory / "err").open("ab") as err:
            return subprocess.Popen(
                self._command, cwd=self._directory, env=self._env, stdout=subprocess.DEVNULL, stderr=err
            )

    def run(self, killed_after_s=None):
        """Run it to its end, or to its kill, and return its exit code."""
        process = self.start()
        if killed_after_s is None:
            return process.wait(100)
        killer = threading.Timer(killed_after_s, process.kill)
        killer.start()
        code = process.wait(100)
        killer.cancel()
        killer.join()
        return code

    def run_until_it_ends(self, max_lost, after_kill=lambda: None):
        """Run it again and again while its driver is killed; return how often that was."""
        num_lost = 0
        while (code := self.run()) != 0:
            assert code == -signal.SIGKILL, self.stderr
            after_kill()
            num_lost += 1
            assert num_lost <= max_lost
        return num_lost

    @property
    def stderr(self):
        return (self._directory / "err").read_text()[-3000:]

    def await_lines(self, num, process):
        """Until the journal has so many lines, while the process lives."""
        deadline = time.monotonic() + 60
        while count_lines(self.path) < num:
            assert process.poll() is None, f"it ended before line {num}: {self.stderr}"
            assert time.monotonic() < deadline, f"line {num} never came: {self.stderr}"
            time.sleep(0.0005)

    def await_pid(self, rank, process):
        """The process of a rank, once it is known."""
        while (pid := read_pids(self.path).get(rank)) is None:
            self.await_lines(count_lines(self.path) + 1, process)
        return pid


def sweep(every, few):
    """Cases of a parametrised test: all of them in `make chaos`, these few elsewhere."""
    few = [pytest.param(*case, id=f"few-{case[-1]}") for case in few]
    return [*few, *(pytest.param(*case, marks=pytest.mark.chaos) for case in every)]


def count_lines(path):
    try:
        return (path / "journal.jsonl").read_bytes().count(b"\n")
    except FileNotFoundError:
        return 0


def read_pids(path):
    """The workers of the last attempt that are known, by rank."""
    ready = read_events(path, WorkerReady)
    return {event.rank: event.pid for event in ready if event.attempt == ready[-1].attempt}


def first_report_since(path, at):
    """When the first report after a moment was made; None where there was nothing left to report."""
    return min((event.at for event in read_events(path, Reported) if event.at > at), default=None)
