"""The life of a data process: take a unit and a stage, write the blocks that come of it into the arenas that are lent.

Everything is asked for and answered over one socket, in one thread. When the service is gone, so is this process.
"""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import os
import socket
import sys
import time
from collections import OrderedDict, deque
from collections.abc import Iterator
from typing import Any

import cloudpickle
import msgspec
import pyarrow as pa

from paceline._core import system
from paceline._core.process import flush_stdio, forget_inherited_exits, reseed, take_over_stdio
from paceline.data.block import Block
from paceline.data.context import DataContext
from paceline.data.exec import arena
from paceline.data.exec.failure import failure
from paceline.data.exec.sizes import pieces
from paceline.data.exec.stats import Meter
from paceline.data.exec.wire import Message, Received, Wire
from paceline.data.transform import Scope, Transform

_JOBS_KEPT = 16
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
_NOTHING_LENT: Message = {"work": 0, "nbytes": -1}


def run(*, control_fd: int, log_fd: int, job_fd: int) -> int:
    """Be a data process until the service is gone; returns the exit code."""
    take_over_stdio(log_fd)
    forget_inherited_exits()
    reseed()
    _keep_to_one_thread()
    _keep_memory()
    with mmap.mmap(job_fd, 0, prot=mmap.PROT_READ) as context:
        os.close(job_fd)
        DataContext._current = cloudpickle.loads(context)
    DataContext.in_data_process = True
    process = DataProcess(Wire(socket.socket(fileno=control_fd)))
    with contextlib.suppress(_Gone, ConnectionError):
        process.serve()
    flush_stdio()
    return 0


class _Gone(Exception):
    """The service has ended."""


class _Dropped(Exception):
    """The work is not wanted any more."""


class _Job:
    """The transforms of a stage, with what they have made; kept for the units and epochs to come."""

    def __init__(self, pickled: bytes) -> None:
        self.transforms: tuple[Transform, ...] = cloudpickle.loads(pickled)
        self.scope = Scope()


class DataProcess:
    def __init__(self, wire: Wire) -> None:
        self._wire = wire
        self._heard: deque[Received] = deque()
        self._memory: dict[int, mmap.mmap] = {}
        self._pickled_jobs: dict[str, bytes] = {}
        self._jobs: OrderedDict[str, _Job] = OrderedDict()
        self._released: deque[int] = deque()
        self._meter = Meter()
        self._lent: Message = _NOTHING_LENT

    def serve(self) -> None:
        self._wire.say({"say": "ready"})
        while True:
            received = self._next()
            if received.message["do"] == "work":
                self._work(received.message, received.data)

    def _work(self, message: Message, data: bytes) -> None:
        work, unit = message["work"], message["name"]
        answer: Message = {"say": "done", "work": work}
        pickled = b""
        started = time.perf_counter()
        self._meter = Meter()
        scope = Scope()
        try:
            job = self._job(message["job"])
            scope = job.scope
            scope.unit = unit
            blocks = cloudpickle.loads(data).read() if not message["stage"] else self._inputs(work)
            for transform in job.transforms:
                blocks = transform.apply(blocks, scope)
            self._write(work, blocks, message["skip"] if message["last"] else None)
        except _Dropped:
            pass
        except (_Gone, ConnectionError):
            raise
        except BaseException as error:  # noqa: BLE001  whatever it is, those who wait for the rows are to know
            told, pickled = failure(error, unit)
            answer = {"say": "failed", "work": work, "failure": told}
        meter = self._meter.closed(time.perf_counter() - started)
        answer |= {"meter": meter, "skipped": scope.skipped, "released": self._take_released()}
        self._wire.say(answer, pickled)
        scope.skipped.clear()

    def _write(self, work: int, blocks: Iterator[Block], skip: int | None) -> None:
        """`skip`: rows that are not wanted; None in a stage that is not the last, whose blocks stay as they are."""
        passed = 0
        for block in blocks:
            if skip is None:
                self._write_block(work, block, 0)
            else:
                for begin, stop in pieces(block, max(skip - passed, 0)):
                    self._write_block(work, block.slice(begin, stop), passed + begin)
                passed += block.num_rows
            del block  # before the next one is made, which may use its memory

    def _write_block(self, work: int, block: Block, offset: int) -> None:
        written = arena.Written(block)
        lent = self._room(work, written.nbytes)
        written.into(self._memory[lent["arena"]])
        self._meter.num_rows += block.num_rows
        self._meter.num_bytes += written.nbytes
        self._wire.say({"say": "wrote", "work": work, "offset": offset, "layout": written.layout})

    def _room(self, work: int, nbytes: int) -> Message:
        """What was lent ahead, if that is enough; else what is lent when it is asked for."""
        while heard := self._wire.hear(wait=False):
            self._heard.extend(heard)
        while self._heard:
            self._expected(work)
        if self._lent["work"] != work or self._lent["nbytes"] < nbytes:
            began = time.perf_counter()
            self._say({"say": "want", "work": work, "nbytes": nbytes})
            while self._lent["work"] != work or self._lent["nbytes"] < nbytes:
                self._expected(work)
            self._meter.waited_for_room += time.perf_counter() - began
        lent, self._lent = self._lent, _NOTHING_LENT
        return lent

    def _inputs(self, work: int) -> Iterator[Block]:
        while True:
            began = time.perf_counter()
            self._say({"say": "need", "work": work})
            while (message := self._expected(work, "feed", "feed end")) is None:
                pass
            self._meter.waited_for_input += time.perf_counter() - began
            if message["do"] == "feed end":
                return
            layout = msgspec.convert(message["layout"], arena.Layout)
            number = message["block"]

            def released(number: int = number) -> None:
                self._released.append(number)

            yield arena.read(layout, self._memory[message["arena"]], released, writable=True)

    def _expected(self, work: int, *answers: str) -> Message | None:
        """The next message, if it is an answer that this work waits for."""
        message = self._next().message
        if message.get("work") != work:
            return None  # an answer to a work that is over
        if message["do"] == "drop":
            raise _Dropped
        return message if message["do"] in answers else None

    def _say(self, message: Message) -> None:
        if self._released:
            message["released"] = self._take_released()
        self._wire.say(message)

    def _take_released(self) -> list[int]:
        return [self._released.popleft() for _ in range(len(self._released))]

    def _next(self) -> Received:
        while not self._heard:
            heard = self._wire.hear()
            if heard is None:
                raise _Gone
            self._heard.extend(heard)
        received = self._heard.popleft()
        for number, fd in zip(received.message.get("arenas", ()), received.fds, strict=True):
            self._memory[number] = arena.mapped(fd)
        for number in received.message.get("forget", ()):
            self._memory.pop(number, None)
        if received.message["do"] == "lend":
            self._lent = received.message
        if received.message["do"] == "job":
            self._pickled_jobs[received.message["job"]] = received.data
        return received

    def _job(self, name: str) -> _Job:
        if name not in self._jobs:
            self._jobs[name] = _Job(self._pickled_jobs[name])
            while len(self._jobs) > _JOBS_KEPT:
                self._jobs.popitem(last=False)
        self._jobs.move_to_end(name)
        return self._jobs[name]


def _keep_to_one_thread() -> None:
    """There are as many of these processes as cores; threads of their own would only stand in each other's way."""
    pa.set_cpu_count(1)
    torch: Any = sys.modules.get("torch")
    if torch is not None:
        torch.set_num_threads(1)


def _keep_memory() -> None:
    """The memory of one block serves the next: to give it back and get it again costs a page fault for each page."""
    libc: Any = ctypes.CDLL(None)
    if system.on_linux() and hasattr(libc, "mallopt"):
        libc.mallopt(_M_MMAP_THRESHOLD, 32 << 20)
        libc.mallopt(_M_TRIM_THRESHOLD, 128 << 20)
