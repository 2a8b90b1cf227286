"""A data process: takes a unit and a stage, and writes the resulting blocks into arenas lent by the service.

All communication is over one socket, in one thread. The process exits when the service is gone.
"""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import os
import socket
import sys
import time
from collections import deque
from collections.abc import Iterator
from functools import lru_cache, partial
from typing import Any

import cloudpickle
import pyarrow as pa

from paceline._core import system
from paceline._core.process_setup import flush_stdio, redirect_stdio, reseed_generators, reset_exit_handlers
from paceline.data.block import Block
from paceline.data.context import DataContext
from paceline.data.exec import arena
from paceline.data.exec.failure import capture_failure
from paceline.data.exec.message_socket import Message, MessageInbox, MessageSocket, ReceivedMessage
from paceline.data.exec.pipeline import split_rows
from paceline.data.exec.stats import StageMeter
from paceline.data.planning.plan import Transform, TransformScope

_JOBS_KEPT = 16
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
_NOTHING_LENT: Message = {"work": 0, "nbytes": -1}


def run(*, control_fd: int, log_fd: int, job_fd: int) -> int:
    """Run as a data process until the service is gone; return the exit code."""
    redirect_stdio(log_fd)
    reset_exit_handlers()
    reseed_generators()
    _limit_threads()
    _retain_freed_memory()
    with mmap.mmap(job_fd, 0, prot=mmap.PROT_READ) as context:
        os.close(job_fd)
        DataContext._current = cloudpickle.loads(context)
    DataContext.in_data_process = True
    process = DataProcess(MessageSocket(socket.socket(fileno=control_fd)))
    with contextlib.suppress(_ServiceGone, ConnectionError):
        process.serve()
    flush_stdio()
    return 0


class _ServiceGone(Exception):
    """The service has ended."""


class _WorkDropped(Exception):
    """The work is no longer wanted."""


class _LoadedStage:
    """The transforms of a stage with the objects they created; kept for later units and epochs."""

    def __init__(self, pickled: bytes) -> None:
        self.transforms: tuple[Transform, ...] = cloudpickle.loads(pickled)
        self.scope = TransformScope()


_load_stage = lru_cache(_JOBS_KEPT)(_LoadedStage)


class DataProcess:
    def __init__(self, wire: MessageSocket) -> None:
        self._wire = wire
        self._inbox = MessageInbox(wire)
        self._pickled_jobs: dict[str, bytes] = {}
        self._released: deque[int] = deque()
        self._meter = StageMeter()
        self._lent: Message = _NOTHING_LENT

    def serve(self) -> None:
        self._wire.send_message({"say": "ready"})
        while True:
            received = self._receive_next()
            if received.message["do"] == "work":
                self._run_work(received.message, received.data)

    def _run_work(self, message: Message, data: bytes) -> None:
        work, unit = message["work"], message["name"]
        answer: Message = {"say": "done", "work": work}
        pickled = b""
        started = time.perf_counter()
        self._meter = StageMeter()
        scope = TransformScope()
        try:
            job = _load_stage(self._pickled_jobs[message["job"]])
            scope = job.scope
            scope.unit = unit
            blocks = cloudpickle.loads(data).read() if not message["stage"] else self._receive_inputs(work)
            for transform in job.transforms:
                blocks = transform.apply(blocks, scope)
            self._write(work, blocks, message["skip"] if message["last"] else None)
        except _WorkDropped:
            pass
        except (_ServiceGone, ConnectionError):
            raise
        except BaseException as error:  # noqa: BLE001
            failure, pickled = capture_failure(error, unit)
            answer = {"say": "failed", "work": work, "failure": failure}
        meter = self._meter.finish(time.perf_counter() - started)
        answer |= {"meter": meter, "skipped": scope.skipped, "released": self._drain_released()}
        self._wire.send_message(answer, pickled)
        scope.skipped.clear()

    def _write(self, work: int, blocks: Iterator[Block], skip: int | None) -> None:
        """`skip`: number of rows to drop; None in a stage that is not the last, whose blocks are not split."""
        passed = 0
        for block in blocks:
            if skip is None:
                self._write_block(work, block, 0)
            else:
                for begin, stop in split_rows(block, max(skip - passed, 0)):
                    self._write_block(work, block.slice(begin, stop), passed + begin)
                passed += block.num_rows
            del block  # before the next one is created, which may reuse its memory

    def _write_block(self, work: int, block: Block, offset: int) -> None:
        written = arena.ArenaBlockWriter(block)
        lent = self._borrow_room(work, written.nbytes)
        written.write_into(self._inbox.memory[lent["arena"]])
        self._meter.num_rows += block.num_rows
        self._meter.num_bytes += written.nbytes
        self._wire.send_message({"say": "wrote", "work": work, "offset": offset, "layout": written.layout})

    def _borrow_room(self, work: int, nbytes: int) -> Message:
        """Use the block lent ahead if it is large enough; else request one."""
        while messages := self._wire.receive_messages(wait=False):
            self._inbox.waiting.extend(messages)
        while self._inbox.waiting:
            self._receive_for(work)
        if self._lent["work"] != work or self._lent["nbytes"] < nbytes:
            began = time.perf_counter()
            self._send({"say": "want", "work": work, "nbytes": nbytes})
            while self._lent["work"] != work or self._lent["nbytes"] < nbytes:
                self._receive_for(work)
            self._meter.waited_for_room_s += time.perf_counter() - began
        lent, self._lent = self._lent, _NOTHING_LENT
        return lent

    def _receive_inputs(self, work: int) -> Iterator[Block]:
        while True:
            began = time.perf_counter()
            self._send({"say": "need", "work": work})
            while (message := self._receive_for(work, "feed", "feed end")) is None:
                pass
            self._meter.waited_for_input_s += time.perf_counter() - began
            if message["do"] == "feed end":
                return
            yield self._inbox.read_block(message, partial(self._released.append, message["block"]), writable=True)

    def _receive_for(self, work: int, *answers: str) -> Message | None:
        """The next message, if it is an answer that this work waits for; else None."""
        message = self._receive_next().message
        if message.get("work") != work:
            return None  # an answer to work that is over
        if message["do"] == "drop":
            raise _WorkDropped
        return message if message["do"] in answers else None

    def _send(self, message: Message) -> None:
        if self._released:
            message["released"] = self._drain_released()
        self._wire.send_message(message)

    def _drain_released(self) -> list[int]:
        return [self._released.popleft() for _ in range(len(self._released))]

    def _receive_next(self) -> ReceivedMessage:
        received = self._inbox.take_next()
        if received is None:
            raise _ServiceGone
        if received.message["do"] == "lend":
            self._lent = received.message
        if received.message["do"] == "job":
            self._pickled_jobs[received.message["job"]] = received.data
        return received


def _limit_threads() -> None:
    """There is one data process per core; threads inside them would only compete."""
    pa.set_cpu_count(1)
    torch: Any = sys.modules.get("torch")
    if torch is not None:
        torch.set_num_threads(1)


def _retain_freed_memory() -> None:
    """Reuse freed memory for the next block: returning it to the system costs a page fault per page."""
    libc: Any = ctypes.CDLL(None)
    if system.is_linux() and hasattr(libc, "mallopt"):
        libc.mallopt(_M_MMAP_THRESHOLD, 32 << 20)
        libc.mallopt(_M_TRIM_THRESHOLD, 128 << 20)
