"""The other side of `_ddp.train_in_turns`: tells a group of workers when to train, and hears how long it took."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TextIO

from _measure import Bench, Process, check, from_ranks, python, torchrun

START_S, TURN_S = 120.0, 120.0

ONE_THREAD = {"OMP_NUM_THREADS": "1"}


class Trainee:
    def __init__(self, process: Process, line: TextIO) -> None:
        self.process = process
        self._line = line
        self.total = 0
        self.pids = [int(pid) for pid in self._heard().split()]
        """Of the workers, by rank."""

    def begin(self, steps: int) -> None:
        self.total += steps
        self._line.write(f"{steps}\n")
        self._line.flush()

    def took(self) -> float:
        return float(self._heard())

    def train(self, steps: int) -> float:
        """Seconds for a number of steps."""
        self.begin(steps)
        return self.took()

    def _heard(self) -> str:
        try:
            answer = self._line.readline()
        except TimeoutError:
            raise self.process.problem(f"did not answer within {TURN_S:.0f} s") from None
        if not answer:
            raise self.process.problem("ended before its time")
        return answer


@contextlib.contextmanager
def trainee(bench: Bench, name: str, env: Mapping[str, str] = ONE_THREAD) -> Iterator[Trainee]:
    """Two workers that train the small model with DDP when told: `ours`, or those of `torchrun`."""
    directory = bench.directory(name)
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(START_S)
        port = server.getsockname()[1]
        if name == "ours":
            command = python("ours/ddp.py", directory, port)
        else:
            command = torchrun("peers/torchrun_ddp.py", directory, port)
        with bench.running(command, directory, env) as process:
            try:
                end, _ = server.accept()
            except TimeoutError:
                raise process.problem(f"did not begin to train within {START_S:.0f} s") from None
            with end:
                end.settimeout(TURN_S)
                with end.makefile("rw") as line:
                    one = Trainee(process, line)
                    yield one
                    one.begin(0)
                process.wait(TURN_S)
    for rank, said in enumerate(from_ranks(directory)):
        check(said["steps"] == one.total, f"{name}: rank {rank} trained {said['steps']} of {one.total} steps")
        check(said["threads"] == 1, f"{name}: rank {rank} had {said['threads']} threads, not 1")
    if name == "ours":
        _check_reports(directory / "run", one.total)


def _check_reports(path: Path, total: int) -> None:
    from _ddp import REPORT_EVERY

    from paceline.train import Result

    metrics = Result.from_path(path).metrics
    expected = total // REPORT_EVERY * REPORT_EVERY
    check(metrics is not None and metrics["step"] == expected, f"the last report is {metrics}, not of step {expected}")
