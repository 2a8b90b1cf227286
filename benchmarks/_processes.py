"""Runs commands in new processes and finds the processes they leave behind."""

from __future__ import annotations

import contextlib
import ctypes
import os
import shlex
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil
from _circumstances import relative_command
from _figures import BenchmarkError

_PR_SET_CHILD_SUBREAPER = 36


@dataclass(frozen=True)
class ProcessResult:
    seconds: float
    """From the start of the process to its exit."""
    cpu_s: float
    """Processor time including children: steadier than seconds on a busy machine."""


class Process:
    """A running command with its output in a file."""

    def __init__(self, command: Sequence[str], log: Path, env: Mapping[str, str]) -> None:
        self.command = command
        self._log = log
        with log.open("wb") as out:
            self._began = time.perf_counter()
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                cwd=log.parent,
                env={**os.environ, **env},
                start_new_session=True,
            )
        self.pid = self._process.pid

    def wait(self, timeout_s: float) -> ProcessResult:
        before = psutil.Process().cpu_times()
        try:
            code = self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            raise self.problem(f"did not end within {timeout_s:.0f} s") from None
        seconds = time.perf_counter() - self._began
        after = psutil.Process().cpu_times()
        if code != 0:
            raise self.problem(f"exited with code {code}")
        used = after.children_user + after.children_system - before.children_user - before.children_system
        return ProcessResult(seconds, used)

    def problem(self, what: str) -> BenchmarkError:
        tail = "\n".join(self._log.read_text("utf-8", "replace").splitlines()[-30:])
        return BenchmarkError(f"{shlex.join(relative_command(self.command))} {what}; its last lines:\n{tail}")

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()


def adopt_orphans() -> None:
    """Become the parent of orphans, so that leftover processes are found."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def end_leftovers(others: Sequence[int], grace_s: float = 0.0) -> list[str]:
    """Kill all our descendants except other running commands (`others`), and return their names."""
    deadline = time.monotonic() + grace_s
    while True:
        left = living_descendants(others)
        if not left or time.monotonic() >= deadline:
            break
        time.sleep(0.02)
    names = [_command_of(process) for process in left]
    while left:
        for process in left:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        psutil.wait_procs(left, timeout=5)
        left = living_descendants(others)
    return names


def living_descendants(others: Sequence[int]) -> list[psutil.Process]:
    """Our running descendants, except other running commands (`others`) and theirs."""
    apart = set(others)
    for pid in others:
        with contextlib.suppress(psutil.NoSuchProcess):
            apart |= {process.pid for process in psutil.Process(pid).children(recursive=True)}
    living = []
    for process in psutil.Process().children(recursive=True):
        if process.pid in apart:
            continue
        with contextlib.suppress(psutil.NoSuchProcess):
            if process.status() == psutil.STATUS_ZOMBIE:
                with contextlib.suppress(ChildProcessError):
                    os.waitpid(process.pid, os.WNOHANG)
            else:
                living.append(process)
    return living


def _command_of(process: psutil.Process) -> str:
    with contextlib.suppress(psutil.Error):
        return f"{process.pid} ({' '.join(process.cmdline())[:80]})"
    return str(process.pid)
