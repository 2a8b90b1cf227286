"""A data process: takes a unit and a stage, and writes the resulting blocks into arenas lent by the service.

All communication about work is over one socket, in one thread. The process exits when the service is gone.
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
from itertools import chain
from typing import Any

import cloudpickle
import pyarrow as pa

from paceline._core import system
from paceline._core.process_setup import flush_stdio, redirect_stdio, reseed_generators, reset_exit_handlers
from paceline.data.block import Block, ConcatenatedBlock
from paceline.data.context import DataContext
from paceline.data.exec import messages as m
from paceline.data.exec.failure import DataFailure, capture_failure
from paceline.data.exec.inspection import start_inspection
from paceline.data.exec.message_socket import MessageSocket
from paceline.data.exec.packed_blocks import BlockLayout, BlockWriter, PieceWriter, read_shared, split_rows
from paceline.data.exec.stats import StageMeter
from paceline.data.planning.plan import Transform, TransformScope

_JOBS_KEPT = 16
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
_NOTHING_LENT = m.WriteTo(work=0, arena=0, nbytes=-1)


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
    process = DataProcess(MessageSocket(socket.socket(fileno=control_fd), m.ToProcess))
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
        self._pickled_jobs: dict[str, bytes] = {}
        self._released: deque[int] = deque()
        self._meter = StageMeter()
        self._lent = _NOTHING_LENT

    def serve(self) -> None:
        with start_inspection() as inspection:
            self._wire.send_message(m.ProcessReady(), (inspection.fileno(),))
        while True:
            message = self._receive_next()
            if isinstance(message, m.StartWork):
                self._run_work(message)

    def _run_work(self, message: m.StartWork) -> None:
        failure: DataFailure | None = None
        started = time.perf_counter()
        self._meter = StageMeter()
        scope = TransformScope()
        try:
            job = _load_stage(self._pickled_jobs[message.job])
            scope = job.scope
            scope.unit, scope.number = message.unit, message.number
            blocks = self._receive_inputs(message.work) if message.stage else cloudpickle.loads(message.pickled).read()
            for transform in job.transforms:
                blocks = transform.apply(blocks, scope)
            self._write(message, blocks)
        except _WorkDropped:
            pass
        except (_ServiceGone, ConnectionError):
            raise
        except BaseException as error:  # noqa: BLE001
            failure = capture_failure(error, message.unit)
        meter = self._meter.finish(time.perf_counter() - started)
        self._send(m.WorkEnded(message.work, meter, scope.skipped, failure))
        scope.skipped.clear()

    def _write(self, message: m.StartWork, blocks: Iterator[Block]) -> None:
        work, passed = message.work, 0
        for block in blocks:
            rest: Block = block
            if message.skip is None:
                self._write_block(work, block, 0)
            else:
                if isinstance(block, ConcatenatedBlock) and passed >= message.skip:
                    num_written, rest = self._write_parts(message, block, passed)
                    passed += num_written
                for begin, stop in split_rows(rest, max(message.skip - passed, 0), message.block_bytes):
                    self._write_block(work, rest.slice(begin, stop), passed + begin)
                passed += rest.num_rows
            del block, rest  # before the next one is created, which may reuse its memory

    def _write_parts(self, message: m.StartWork, block: ConcatenatedBlock, offset: int) -> tuple[int, Block]:
        """Write each part as soon as it is made; return the number of rows, and what could not be written so."""
        parts = block.stream_parts()
        if (first := next(parts, None)) is None:
            return 0, Block.empty()
        rest = ConcatenatedBlock(chain([first], parts), block.num_expected)
        if not first.num_rows or not PieceWriter.can_write(first):
            return 0, rest
        writer = PieceWriter(first, block.num_expected)
        if writer.nbytes > message.block_bytes or not writer.fits(first):
            return 0, rest
        memory = self._wire.memory[self._borrow_arena(message.work, writer.nbytes)]
        num_rows, unwritten = 0, Block.empty()
        for part in rest.stream_parts():
            if not writer.fits(part):
                unwritten = ConcatenatedBlock(chain([part], parts), block.num_expected)
                break
            writer.write(part, memory)
            num_rows += part.num_rows
        self._send_written(message.work, offset, writer.finish())
        return num_rows, unwritten

    def _write_block(self, work: int, block: Block, offset: int) -> None:
        writer = BlockWriter(block)
        arena = self._borrow_arena(work, writer.layout.nbytes)
        writer.write_into(self._wire.memory[arena])
        self._send_written(work, offset, writer.layout)

    def _send_written(self, work: int, offset: int, layout: BlockLayout) -> None:
        self._meter.num_rows += layout.num_rows
        self._meter.num_bytes += layout.nbytes
        self._wire.send_message(m.BlockWritten(work, offset, layout))

    def _borrow_arena(self, work: int, nbytes: int) -> int:
        """Use the arena lent ahead if it is large enough; else request one."""
        while self._wire.receive_messages(wait=False):
            pass
        while self._wire.waiting:
            self._receive_for(work)
        if self._lent.work != work or self._lent.nbytes < nbytes:
            began = time.perf_counter()
            self._send(m.RoomRequested(work, nbytes))
            while self._lent.work != work or self._lent.nbytes < nbytes:
                self._receive_for(work)
            self._meter.waited_for_room_s += time.perf_counter() - began
        lent, self._lent = self._lent, _NOTHING_LENT
        return lent.arena

    def _receive_inputs(self, work: int) -> Iterator[Block]:
        while True:
            began = time.perf_counter()
            self._send(m.InputRequested(work))
            while not isinstance(message := self._receive_for(work), m.TakeInput | m.EndInput):
                pass
            self._meter.waited_for_input_s += time.perf_counter() - began
            if isinstance(message, m.EndInput):
                return
            released = partial(self._released.append, message.block)
            yield read_shared(message.layout, self._wire.memory[message.arena], released, writable=True)

    def _receive_for(self, work: int) -> m.ToProcess | None:
        """The next message, if it is about this work; else None."""
        message = self._receive_next()
        if isinstance(message, m.LoadJob) or message.work != work:
            return None  # about work that is over
        if isinstance(message, m.AbandonWork):
            raise _WorkDropped
        return message

    def _send(self, message: m.ProcessMessage) -> None:
        message.released = [self._released.popleft() for _ in range(len(self._released))]
        self._wire.send_message(message)

    def _receive_next(self) -> m.ToProcess:
        message: m.ToProcess | None = self._wire.take_message()
        if message is None:
            raise _ServiceGone
        if isinstance(message, m.WriteTo):
            self._lent = message
        if isinstance(message, m.LoadJob):
            self._pickled_jobs[message.job] = message.pickled
        return message


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
