"""Runs over the hosts: `train_steps.py` as a script on one of them, and what it said, when."""

import contextlib
import functools
import json
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from network import SHARED

from processes import wait_until

STEPS = 60
LIMIT_S = 400
SCRIPT = Path(__file__).parent / "train_steps.py"


class HostRun:
    def __init__(self, network, name, driver, *, storage=None, env=None, **options):
        """Start the script on the host `driver`; `options` are those of `train_steps.py`."""
        self._again = functools.partial(HostRun, network, name, storage=storage, env=env, **options)
        self._driver = driver
        self.path = network.shared / "runs" / name
        """Where the run is kept, unless that is a store."""
        self.notes = network.shared / "runs" / f"{name}-notes"
        self.notes.mkdir(parents=True, exist_ok=True)
        (network.shared / SCRIPT.name).write_text(SCRIPT.read_text())
        notes = SHARED / "runs" / f"{name}-notes"
        arguments = (storage or SHARED / "runs", notes, name, STEPS, json.dumps(options))
        self._process = driver.popen(
            *(sys.executable, SHARED / SCRIPT.name, *arguments),
            env={"RAY_ADDRESS": network.address, **(env or {})},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.struck_at = time.time()
        self._output, self._said = [], []
        streams = ((self._process.stdout, self._output), (self._process.stderr, self._said))
        self._readers = [threading.Thread(target=self._read, args=each, daemon=True) for each in streams]
        for reader in self._readers:
            reader.start()

    @staticmethod
    def _read(stream, lines):
        for line in stream:
            lines.append((time.time(), line))

    def start_again(self, driver):
        """Start the same script on another host."""
        return contextlib.closing(self._again(driver))

    @property
    def said(self):
        """What the driver has printed for people so far."""
        return "".join(line for _, line in list(self._said))

    def steps(self):
        """Every step that was made and reported: its rank, number and time."""
        with contextlib.suppress(FileNotFoundError):
            lines = (self.notes / "steps").read_text().splitlines()
            return [(int(rank), int(step), float(at)) for rank, step, at in map(str.split, lines)]
        return []

    def wait_for_step(self, step):
        """Wait until a rank has made a step; the fault follows, and times count from here."""

        def has_made_it():
            assert self._process.poll() is None, self.said
            return any(number == step for _, number, _ in self.steps())

        wait_until(has_made_it, LIMIT_S)
        self.struck_at = time.time()

    def wait_until_said(self, *texts):
        """Wait until the driver has printed one of these."""

        def has_said():
            has_ended = self._process.poll() is not None
            if has_ended:
                self.wait()  # Until all of its output is read.
            has_said_one = any(text in self.said for text in texts)
            assert has_said_one or not has_ended, self.said
            return has_said_one

        wait_until(has_said, LIMIT_S)

    def seconds_to_say(self, *texts):
        """The seconds from the fault to the first line with one of these texts."""
        for at, line in self._said:
            if at >= self.struck_at and any(text in line for text in texts):
                return at - self.struck_at
        raise AssertionError(f"none of {texts} was said:\n{self.said}")

    def seconds_without_step(self):
        """The longest time that a rank stood still after the fault."""
        last, longest = {}, 0.0
        for rank, _, at in self.steps():
            if at > self.struck_at:
                longest = max(longest, at - last.get(rank, self.struck_at))
                last[rank] = at
        return longest

    def worker_on(self, host):
        """The process id of the worker on a host, as that host counts."""
        for note in self.notes.glob("rank_*"):
            about = json.loads(note.read_text())
            if about["host"] == host.name:
                return about["pid"]
        raise AssertionError(f"no worker on {host.name}")

    def wait(self):
        """Wait for the end of the script; return its exit code."""
        code = self._process.wait(LIMIT_S)
        for reader in self._readers:
            reader.join()
        return code

    def finish(self):
        """Wait for the end, which is that of an undisturbed run; return what the driver said."""
        assert self.wait() == 0, self.said
        rows = json.loads(next(line for _, line in self._output if line.startswith('{"steps"')))
        assert rows["steps"] == list(range(1, STEPS + 1)), self.said
        value = 1.0
        for step, reported in enumerate(rows["values"]):
            value = value * 0.9 + step
            assert reported == pytest.approx(value)
        return self.said

    def close(self):
        """End what is left of the script."""
        if self._process.poll() is None and self._driver.is_alive:
            name = f"[{SCRIPT.name[0]}]{SCRIPT.name[1:]}"  # which this shell's own command does not match
            self._driver.run("sh", "-c", f"pkill -9 -f {name} || true")
        self.wait()
        self._process.stdout.close()
        self._process.stderr.close()
