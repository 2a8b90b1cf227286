"""The data service: one thread that owns data processes, arenas and streams, and hands out blocks.

Consumers are members: workers that connect to `address`, or this process itself through `connect`. Both speak the same
protocol. `schedule` decides what happens next; `streams` serves the members, and `process_supervisor` the processes.
`ProcessExecutor` runs pipelines through the service that this process shares.
"""

from __future__ import annotations

import atexit
import contextlib
import copy
import os
import secrets
import selectors
import shutil
import socket
import struct
import tempfile
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path

from paceline._core import system
from paceline._core.process_setup import prepare_driver
from paceline._engine.messages import DataProcessSampled
from paceline.data.context import DataContext
from paceline.data.exec.arena import ArenaPool
from paceline.data.exec.messages import OpenStream
from paceline.data.exec.pipeline import Pipeline
from paceline.data.exec.process_supervisor import (
    POLL_S,
    DataProcessHandle,
    DataProcessSupervisor,
    ProcessInspection,
)
from paceline.data.exec.schedule import Schedule
from paceline.data.exec.schedule_state import FreeBlock, ProcessCommand
from paceline.data.exec.service_client import ServiceConnectionPool
from paceline.data.exec.spill import ReusableMemory
from paceline.data.exec.stats import StatsRecorder, StreamStats
from paceline.data.exec.streams import Peer, RunningStream, StreamServer
from paceline.data.order.sharding import RowDelivery
from paceline.data.planning.plan import PlanNode

BLOCKS_AHEAD = 4
"""Full-size blocks per process: more would take memory without a gain."""
MIN_SPLIT_BYTES = 8 << 20
"""Blocks are not split further, however little memory there is."""


class DataService:
    def __init__(self, context: DataContext | None = None) -> None:
        prepare_driver()
        context = context or DataContext.get_current()
        block_bytes = context.target_max_block_size
        # A process that joins or sorts the rows of a block holds them twice, beside what is in flight.
        num_processes = min(context.num_processes, max(1, system.usable_memory().free_bytes // (4 * block_bytes)))
        limit = min(context.budget, BLOCKS_AHEAD * num_processes * block_bytes)
        # Where memory is short, several smaller blocks must fit: otherwise everybody waits for the same one.
        block_bytes = min(block_bytes, max(MIN_SPLIT_BYTES, limit // (2 * num_processes + 2)))
        self._schedule = Schedule(limit, num_processes, max_deaths=context.max_unit_failures)
        self._arena_pool = ArenaPool(limit)
        self.exchange_memory = ReusableMemory()
        self._selector = selectors.DefaultSelector()
        self._wake_r, self._wake_w = socket.socketpair()
        self._wake_r.setblocking(False)
        self._wake_w.setblocking(False)
        self._selector.register(self._wake_r, selectors.EVENT_READ, "wake")
        self._running: dict[int, RunningStream] = {}
        self._supervisor = DataProcessSupervisor(
            self._selector, context, block_bytes, self._schedule, self._arena_pool, self._running
        )
        self.streams = StreamServer(
            self._schedule, self._arena_pool, self._running, lambda: ProcessExecutor(self), self._call_in_thread
        )
        self._sample_numbers = count(1)
        self._pending_calls: deque[Callable[[], object]] = deque()
        self._listener: socket.socket | None = None
        self._address = ""
        self._directory: str | None = None
        self._closing = False
        self._owner = os.getpid()
        self.connections = ServiceConnectionPool(self.connect)
        self._lock = threading.Lock()  # protects `_address`
        self._thread = threading.Thread(target=self._serve, name="paceline-data", daemon=True)
        self._thread.start()

    # For callers in this process

    @property
    def is_alive(self) -> bool:
        """False in a forked child of the process it serves."""
        return self._owner == os.getpid() and not self._closing and self._thread.is_alive()

    @property
    def address(self) -> str:
        """The address that workers connect to."""
        with self._lock:
            if not self._address:
                self._listener, self._address, self._directory = _open_listener()
                listener = self._listener
                self._call_in_thread(lambda: self._selector.register(listener, selectors.EVENT_READ, "listener"))
            return self._address

    def add_dataset(self, name: str, plan: PlanNode) -> None:
        """Serve a dataset under a name; replaces an earlier one of that name."""
        self.streams.add_dataset(name, plan)

    def connect(self) -> socket.socket:
        """Connect a member in this process to the service."""
        ours, theirs = socket.socketpair()
        self._call_in_thread(lambda: self._add_peer(theirs))
        return ours

    def stats(self, name: str) -> StreamStats:
        return self.streams.stream_stats(self.streams.datasets[name].record)

    def all_stats(self) -> dict[str, StreamStats]:
        """The statistics of all datasets, as far as they can be read without waiting for the service thread."""
        stats = {}
        for name in list(self.streams.datasets):
            with contextlib.suppress(RuntimeError):  # a stage was added during the read: included the next time
                stats[name] = self.stats(name)
        return stats

    @property
    def is_busy(self) -> bool:
        return bool(self._running)

    def pids(self) -> list[int]:
        """The pids of the running data processes."""
        return self._supervisor.pids()

    def request_samples(self) -> int:
        """Ask the data processes that are at work for their stacks; return the number of the request."""
        number = next(self._sample_numbers)
        self._call_in_thread(lambda: self._supervisor.request_samples(number))
        return number

    def read_samples(self) -> list[DataProcessSampled]:
        """The last answer of each data process that is at work."""
        return list(self._supervisor.samples.values())

    def close(self) -> None:
        """Stop all streams and processes, and free all memory that nobody has views of."""
        if self._owner != os.getpid() or self._closing:
            return
        self._closing = True
        self._wake()
        self._thread.join()
        self.connections.close()

    # The thread

    def _serve(self) -> None:
        try:
            while not self._closing:
                self._run_once()
        finally:
            self._shut_down()

    def _run_once(self) -> None:
        may_have_died = self._supervisor.needs_polling
        for key, mask in self._selector.select(self._timeout()):
            match key.data:
                case "wake":
                    with contextlib.suppress(BlockingIOError):
                        self._wake_r.recv(4096)
                case "listener":
                    self._accept()
                case "launcher":
                    may_have_died = True
                case ProcessInspection() as inspection:
                    self._supervisor.serve_inspection(inspection, mask)
                case DataProcessHandle() as process:
                    self._supervisor.serve(process, mask)
                case Peer() as peer:
                    self.streams.serve(peer, mask)
        while self._pending_calls:
            self._pending_calls.popleft()()
        if may_have_died:
            self._supervisor.collect_deaths()
        now = time.monotonic()
        self.streams.check_patience(now)
        if self._supervisor.check_idle(now):
            self.exchange_memory.free()
        has_more = True
        while has_more and (commands := self._schedule.take_commands()):
            has_more = False
            for command in commands:
                if isinstance(command, ProcessCommand):
                    self._supervisor.execute(command)
                    has_more = True  # Lent room or work may leave other decisions to take; what follows does not.
                elif isinstance(command, FreeBlock):
                    self._arena_pool.free_block(command.block)
                else:
                    self.streams.execute(command)
        if freed := self._arena_pool.take_freed():
            for connection in (*self.streams.peers, *self._supervisor.processes):
                connection.forget_arenas(freed)

    def _timeout(self) -> float | None:
        return POLL_S if self.streams.is_patient else self._supervisor.timeout_s

    def _shut_down(self) -> None:
        self._closing = True
        self._supervisor.close()
        for peer in self.streams.peers:
            peer.close()
        for end in (self._listener, self._wake_r, self._wake_w):
            if end is not None:
                end.close()
        if self._directory is not None:
            shutil.rmtree(self._directory, ignore_errors=True)
        self._arena_pool.close()
        self.exchange_memory.close()
        self._selector.close()

    # Connections

    def _call_in_thread(self, call: Callable[[], object]) -> None:
        self._pending_calls.append(call)
        self._wake()

    def _wake(self) -> None:
        with contextlib.suppress(BlockingIOError, OSError):
            self._wake_w.send(b"\0")

    def _accept(self) -> None:
        assert self._listener is not None
        try:
            end, _ = self._listener.accept()
        except OSError:
            return  # the peer has disconnected already
        if _is_same_user(end):
            self._add_peer(end)
        else:
            end.close()

    def _add_peer(self, end: socket.socket) -> None:
        self.streams.peers.add(Peer(end, self._selector))


def _open_listener() -> tuple[socket.socket, str, str | None]:
    """Open a socket for workers of this user; return it, its address, and the directory to remove at the end.

    On Linux the address is an abstract name that disappears with the socket; elsewhere it is a file in a private
    directory.
    """
    listener = socket.socket(socket.AF_UNIX)
    directory = None
    if system.is_linux():
        address = f"@paceline-data-{secrets.token_hex(16)}"
        listener.bind("\0" + address[1:])
    else:
        directory = tempfile.mkdtemp(prefix="paceline-data-")
        address = str(Path(directory) / "service")
        listener.bind(address)
    listener.listen(128)
    listener.setblocking(False)
    return listener, address, directory


def _is_same_user(end: socket.socket) -> bool:
    """Whether the other end is a process of this user, where the system reports that."""
    if not hasattr(socket, "SO_PEERCRED"):
        return True
    data = end.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    return bool(struct.unpack("3i", data)[1] == os.getuid())


class ProcessExecutor:
    """Runs pipelines in the data processes of a service."""

    def __init__(self, service: DataService) -> None:
        self.service = service
        self.exchange_memory = service.exchange_memory
        self.record = StatsRecorder()

    def run(self, pipeline: Pipeline, unit: int = 0, offset: int = 0) -> Iterator[RowDelivery]:
        streams, connections = self.service.streams, self.service.connections
        with streams.register_pipeline(pipeline, self.record) as name, connections.borrow() as connection:
            yield from connection.stream_rows(OpenStream(0, unit, offset, name))

    def stats(self) -> StreamStats:
        return self.service.streams.stream_stats(self.record)


_shared: tuple[DataService, DataContext, str] | None = None
"""The service, and the context and the working directory that its processes were started with."""
_replaced: list[DataService] = []
"""Services of earlier contexts, which end when nothing runs in them any more."""
_lock = threading.Lock()  # protects `_shared` and `_replaced`


def shared_service() -> DataService:
    """The service of this process: started if there is none, replaced if context or working directory have changed."""
    global _shared
    context, directory = DataContext.get_current(), system.working_directory()
    with _lock:
        if _shared is None:
            atexit.register(shutdown)
        elif _shared[0].is_alive and _shared[1:] == (context, directory):
            return _shared[0]
        else:
            _replaced.append(_shared[0])
        for service in [each for each in _replaced if not each.is_busy]:
            _replaced.remove(service)
            service.close()
        service = DataService(context)
        _shared = service, copy.deepcopy(context), directory
        return service


def shutdown() -> None:
    """Stop the data processes of this process, and free their memory."""
    global _shared
    with _lock:
        services = [*_replaced, *([_shared[0]] if _shared is not None else [])]
        _replaced.clear()
        _shared = None
    for service in services:
        service.close()
