"""The other side of `_ddp.train_in_turns`: instructs a group of workers to train and reads how long it took."""

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
from _measure import Bench, Process, check, python, read_rank_results

START_S, TURN_S = 240.0, 120.0
REPORT_EVERY = 10
"""The same as in `_ddp`, which is not imported here because it imports torch."""

ONE_THREAD = {"OMP_NUM_THREADS": "1"}


class TrainingGroup:
    def __init__(self, process: Process, line: TextIO) -> None:
        self.process = process
        self._line = line
        self.total = 0
        self.reported = 0
        """The last reported step."""
        self.pids = [int(pid) for pid in self._read_line().split()]
        """Process ids of the workers, by rank."""
        first = psutil.Process(process.pid)
        self._all = [first.pid, *(child.pid for child in first.children(recursive=True))]

    def begin(self, steps: int, every: int = REPORT_EVERY) -> None:
        self.total += steps
        if every:
            last = self.total // every * every
            self.reported = last if last > self.total - steps else self.reported
        self._line.write(f"{steps} {every}\n")
        self._line.flush()

    def read_seconds(self) -> float:
        return float(self._read_line())

    def train(self, steps: int, every: int = REPORT_EVERY) -> float:
        """Train some steps and return the seconds they took."""
        self.begin(steps, every)
        return self.read_seconds()

    def cpu_s(self) -> float:
        """Processor time of all its processes so far, the driver included, to the nanosecond."""
        return sum(time.clock_gettime((~pid << 3) | 2) for pid in self._all)

    def pause(self) -> None:
        """Stop all processes while another group has its turn."""
        self._send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        self._send_signal(signal.SIGCONT)

    def _send_signal(self, number: signal.Signals) -> None:
        for pid in self._all:
            try:
                os.kill(pid, number)
            except ProcessLookupError:
                raise self.process.problem(f"lost its process {pid}") from None

    def _read_line(self) -> str:
        try:
            answer = self._line.readline()
        except TimeoutError:
            raise self.process.problem(f"did not answer within {TURN_S:.0f} s") from None
        if not answer:
            raise self.process.problem("ended too early")
        return answer


@contextlib.contextmanager
def start_group(
    bench: Bench, name: str, model: str = "small", env: Mapping[str, str] = ONE_THREAD
) -> Iterator[TrainingGroup]:
    """Start two workers of ours or of a peer that train a DDP model in turns."""
    directory = bench.directory(name)
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(START_S)
        command = _command(bench, name, directory, server.getsockname()[1], model)
        with bench.start(command, directory, env) as process:
            try:
                end, _ = server.accept()
            except TimeoutError:
                raise process.problem(f"did not start training within {START_S:.0f} s") from None
            with end:
                end.settimeout(TURN_S)
                with end.makefile("rw") as line:
                    group = TrainingGroup(process, line)
                    try:
                        yield group
                    finally:
                        group.resume()  # A stopped process cannot exit.
                    group.begin(0)
                process.wait(TURN_S)
    for rank, result in enumerate(read_rank_results(directory)):
        check(result["steps"] == group.total, f"{name}: rank {rank} trained {result['steps']} of {group.total} steps")
        check(result["threads"] == 1, f"{name}: rank {rank} had {result['threads']} threads, not 1")
    if name == "ours":
        _check_reports(directory / "run", group.reported)


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
