"""The other side of `_ddp.train_in_turns`: tells a group of workers when to train, and hears how long it took."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TextIO

import psutil
from _measure import Bench, Process, check, from_ranks, python

START_S, TURN_S = 240.0, 120.0
REPORT_EVERY = 10
"""As `_ddp` has it, which imports torch."""

ONE_THREAD = {"OMP_NUM_THREADS": "1"}


class Trainee:
    def __init__(self, process: Process, line: TextIO) -> None:
        self.process = process
        self._line = line
        self.total = 0
        self.reported = 0
        """The last step that was reported."""
        self.pids = [int(pid) for pid in self._heard().split()]
        """Of the workers, by rank."""
        first = psutil.Process(process.pid)
        self._all = [first.pid, *(child.pid for child in first.children(recursive=True))]

    def begin(self, steps: int, every: int = REPORT_EVERY) -> None:
        self.total += steps
        if every:
            last = self.total // every * every
            self.reported = last if last > self.total - steps else self.reported
        self._line.write(f"{steps} {every}\n")
        self._line.flush()

    def took(self) -> float:
        return float(self._heard())

    def train(self, steps: int, every: int = REPORT_EVERY) -> float:
        """Seconds for a number of steps."""
        self.begin(steps, every)
        return self.took()

    def cpu_s(self) -> float:
        """Processor time so far of all its processes, those that only look on included, to the nanosecond."""
        return sum(time.clock_gettime((~pid << 3) | 2) for pid in self._all)

    def pause(self) -> None:
        """Let it use nothing while another has its turn."""
        self._signalled(signal.SIGSTOP)

    def go_on(self) -> None:
        self._signalled(signal.SIGCONT)

    def _signalled(self, number: signal.Signals) -> None:
        for pid in self._all:
            try:
                os.kill(pid, number)
            except ProcessLookupError:
                raise self.process.problem(f"lost its process {pid}") from None

    def _heard(self) -> str:
        try:
            answer = self._line.readline()
        except TimeoutError:
            raise self.process.problem(f"did not answer within {TURN_S:.0f} s") from None
        if not answer:
            raise self.process.problem("ended before its time")
        return answer


@contextlib.contextmanager
def trainee(bench: Bench, name: str, model: str = "small", env: Mapping[str, str] = ONE_THREAD) -> Iterator[Trainee]:
    """Two workers that train a model with DDP when told: `ours`, or those of a peer."""
    directory = bench.directory(name)
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(START_S)
        command = _command(bench, name, directory, server.getsockname()[1], model)
        with bench.running(command, directory, env) as process:
            try:
                end, _ = server.accept()
            except TimeoutError:
                raise process.problem(f"did not begin to train within {START_S:.0f} s") from None
            with end:
                end.settimeout(TURN_S)
                with end.makefile("rw") as line:
                    one = Trainee(process, line)
                    try:
                        yield one
                    finally:
                        one.go_on()  # What is stopped cannot end.
                    one.begin(0)
                process.wait(TURN_S)
    for rank, said in enumerate(from_ranks(directory)):
        check(said["steps"] == one.total, f"{name}: rank {rank} trained {said['steps']} of {one.total} steps")
        check(said["threads"] == 1, f"{name}: rank {rank} had {said['threads']} threads, not 1")
    if name == "ours":
        _check_reports(directory / "run", one.reported)


def _command(bench: Bench, name: str, directory: Path, port: int, model: str) -> list[str]:
    match name:
        case "ours":
            return python("ours/ddp.py", directory, port, model)
        case "torchrun":
            return bench.torchrun("peers/torchrun_ddp.py", directory, port, model)
        case "accelerate":
            return bench.accelerate("peers/accelerate_ddp.py", directory, port, model)
    return bench.peer(name, f"peers/{name}_ddp.py", directory, port, model)


def _check_reports(path: Path, expected: int) -> None:
    from paceline.train import Result

    metrics = Result.from_path(path).metrics
    check(metrics is not None and metrics["step"] == expected, f"the last report is {metrics}, not of step {expected}")
