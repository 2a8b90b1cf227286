"""The data service: one thread that owns data processes, arenas and streams, and hands out blocks.

Consumers are members: workers that connect to `address`, or this process itself through `connect`. Both speak the same
protocol. `schedule` decides what happens next; this module carries it out.
"""

from __future__ import annotations

import contextlib
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
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from pathlib import Path

import cloudpickle
import msgspec

from paceline._core import system
from paceline.data.context import DataContext
from paceline.data.exec import schedule_state as c
from paceline.data.exec.arena import ArenaPool, BlockLayout
from paceline.data.exec.failure import DataFailure, capture_failure
from paceline.data.exec.message_socket import Message, MessageSocket, ReceivedMessage
from paceline.data.exec.pipeline import DatasetEntry, DatasetFacts, Executor, Pipeline, find_dataset, lower_epoch
from paceline.data.exec.process_supervisor import DataProcessHandle, DataProcessSupervisor
from paceline.data.exec.schedule import Schedule
from paceline.data.exec.service_client import ServiceConnectionPool
from paceline.data.exec.stats import StageMeter, StatsRecorder, StreamStats
from paceline.data.exec.streams import Peer, RunningStream, StreamMember, make_stage_jobs, make_stream_spec
from paceline.data.planning.plan import PlanNode, SkippedRows

BLOCKS_AHEAD = 4
"""Full-size blocks per process: more would take memory without a gain."""
PATIENCE_S = 10.0
"""How long members that want more than is kept for all wait for members that have not joined.

A member that joins later gets its own stream, and the rows are computed twice."""
SHARED_PATIENCE_S = 1.0
"""The same where each member reads all rows: some members may never join."""
IDLE_S = 15.0
"""A process without work for this long is retired."""

_POLL_S = 0.1


@dataclass
class _OpeningDataset(DatasetEntry):
    opening: dict[int, list[tuple[Peer, Message]]] = field(default_factory=dict)
    """By epoch, the peers that wait for the pipeline."""


class DataService:
    def __init__(self, context: DataContext | None = None) -> None:
        context = context or DataContext.get_current()
        num_processes = context.num_processes
        limit = min(context.budget, BLOCKS_AHEAD * num_processes * context.target_max_block_size)
        self._schedule = Schedule(limit, num_processes, max_deaths=context.max_unit_failures)
        self._arena_pool = ArenaPool(limit)
        self._selector = selectors.DefaultSelector()
        self._wake_r, self._wake_w = socket.socketpair()
        self._wake_r.setblocking(False)
        self._wake_w.setblocking(False)
        self._selector.register(self._wake_r, selectors.EVENT_READ, "wake")
        self._supervisor = DataProcessSupervisor(self._selector, context)
        self._pending_calls: deque[Callable[[], object]] = deque()
        self._peers: set[Peer] = set()
        self._members: dict[int, StreamMember] = {}
        self._running: dict[int, RunningStream] = {}
        self._blocks: dict[int, tuple[int, BlockLayout | None]] = {}
        """The arena of each block, and its layout there."""
        self._datasets: dict[str, _OpeningDataset] = {}
        self._registered_pipelines: dict[str, tuple[Pipeline, StatsRecorder]] = {}
        self._listener: socket.socket | None = None
        self._address = ""
        self._directory: str | None = None
        self._closing = False
        self._owner = os.getpid()
        self.connections = ServiceConnectionPool(self.connect)
        self._error: BaseException | None = None
        self._lock = threading.Lock()  # protects `_registered_pipelines` and `_address`
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
        self._datasets[name] = _OpeningDataset(plan)

    def connect(self) -> MessageSocket:
        """Connect a member in this process to the service."""
        ours, theirs = socket.socketpair()
        theirs.setblocking(False)
        self._call_in_thread(lambda: self._add_peer(theirs))
        return MessageSocket(ours)

    def register_pipeline(self, pipeline: Pipeline, record: StatsRecorder) -> str:
        """Return a name under which the pipeline can be opened once."""
        name = secrets.token_hex(8)
        with self._lock:
            self._registered_pipelines[name] = (pipeline, record)
        return name

    def unregister_pipeline(self, name: str) -> None:
        with self._lock:
            self._registered_pipelines.pop(name, None)

    def stats(self, name: str) -> StreamStats:
        return self.stream_stats(self._datasets[name].record)

    def all_stats(self) -> dict[str, StreamStats]:
        """The statistics of all datasets, as far as they can be read without waiting for the service thread."""
        stats = {}
        for name in list(self._datasets):
            with contextlib.suppress(RuntimeError):  # a stage was added during the read: included the next time
                stats[name] = self.stats(name)
        return stats

    def stream_stats(self, record: StatsRecorder) -> StreamStats:
        return record.to_stats(self._schedule.peak, self._schedule.limit)

    @property
    def is_busy(self) -> bool:
        return bool(self._running)

    def pids(self) -> list[int]:
        """The pids of the running data processes."""
        return [pid for process in self._supervisor.processes if (pid := self._supervisor.pid(process.number))]

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
        except BaseException as error:
            self._error = error
            raise
        finally:
            self._shut_down()

    def _run_once(self) -> None:
        for key, mask in self._selector.select(self._timeout()):
            match key.data:
                case "wake":
                    with contextlib.suppress(BlockingIOError):
                        self._wake_r.recv(4096)
                case "listener":
                    self._accept()
                case DataProcessHandle() | Peer() as owner:
                    self._serve_connection(owner, mask)
        while self._pending_calls:
            self._pending_calls.popleft()()
        for death in self._supervisor.collect_deaths():
            for received in death.unread_messages:
                self._handle_process_message(death.process, received)
            if death.process.assignment is not None:
                stream, unit = death.process.assignment
                if stream in self._running:
                    self._running[stream].deaths[unit] = death.description
            else:
                self._last_death = death.description
            self._schedule.on_process_died(death.process.number)
        self._check_timeouts()
        while commands := self._schedule.take_commands():
            for command in commands:
                self._execute_command(command)
        self._queue_freed_arenas()

    _last_death = "ended"

    def _timeout(self) -> float | None:
        if self._supervisor.needs_polling:
            return _POLL_S
        if any(running.patient_until is not None for running in self._running.values()):
            return _POLL_S
        return IDLE_S / 2 if self._supervisor.processes else None

    def _check_timeouts(self) -> None:
        now = time.monotonic()
        for number, running in self._running.items():
            if running.patient_until is not None and now >= running.patient_until:
                running.patient_until = None
                self._schedule.stop_waiting(number)
        for process in self._supervisor.processes:
            if process.assignment is None and now - process.idle_since > IDLE_S:
                process.idle_since = now
                self._schedule.on_process_idle(process.number)

    def _shut_down(self) -> None:
        self._closing = True
        self._supervisor.close()
        for peer in self._peers:
            peer.wire.close()
        for end in (self._listener, self._wake_r, self._wake_w):
            if end is not None:
                end.close()
        if self._directory is not None:
            shutil.rmtree(self._directory, ignore_errors=True)
        self._arena_pool.close()
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
            end.setblocking(False)
            self._add_peer(end)
        else:
            end.close()

    def _add_peer(self, end: socket.socket) -> None:
        peer = Peer(MessageSocket(end))
        self._peers.add(peer)
        self._selector.register(end, selectors.EVENT_READ, peer)

    def _serve_connection(self, owner: DataProcessHandle | Peer, mask: int) -> None:
        wire = owner.wire
        if mask & selectors.EVENT_READ:
            messages = wire.receive_messages()
            if messages is None:
                if isinstance(owner, Peer):
                    self._disconnect_peer(owner)
                else:
                    self._supervisor.disconnect(owner)  # its exit is handled separately
                return
            for received in messages:
                if isinstance(owner, Peer):
                    self._handle_peer_message(owner, received.message)
                else:
                    self._handle_process_message(owner, received)
        try:
            wire.flush()
        except ConnectionError:
            return  # the disconnect is handled when the socket is read
        if wire.sock.fileno() >= 0:
            events = selectors.EVENT_READ | (selectors.EVENT_WRITE if wire.has_unsent else 0)
            self._selector.modify(wire.sock, events, owner)

    def _send(
        self, to: DataProcessHandle | Peer, message: Message, data: bytes = b"", arena: int | None = None
    ) -> None:
        fds: tuple[int, ...] = ()
        if arena is not None and arena not in to.arenas:
            to.arenas.add(arena)
            message["arenas"], fds = [arena], (self._arena_pool.fd(arena),)
        if to.arenas_to_forget:
            message["forget"], to.arenas_to_forget = to.arenas_to_forget, []
        if to.wire.sock.fileno() < 0:
            return
        try:
            to.wire.send_message(message, data, fds)
        except ConnectionError:
            return  # as in `_serve_connection`
        if to.wire.has_unsent:
            self._selector.modify(to.wire.sock, selectors.EVENT_READ | selectors.EVENT_WRITE, to)

    def _queue_freed_arenas(self) -> None:
        """Sent with the next message: until then, a truncated mapping takes no memory."""
        freed, self._arena_pool.freed = self._arena_pool.freed, []
        holders: list[DataProcessHandle | Peer] = [*self._peers, *self._supervisor.processes] if freed else []
        for holder in holders:
            for number in holder.arenas.intersection(freed):
                holder.arenas.discard(number)
                holder.arenas_to_forget.append(number)

    def _disconnect_peer(self, peer: Peer) -> None:
        self._selector.unregister(peer.wire.sock)
        peer.wire.close()
        self._peers.discard(peer)
        for number in peer.departed_members:
            self._schedule.on_member_gone(number)
        for member in list(peer.members.values()):
            self._schedule.on_member_gone(member.number)
            self._forget_member(member)

    # Received messages

    def _handle_process_message(self, process: DataProcessHandle, received: ReceivedMessage) -> None:
        message, number = received.message, process.number
        self._schedule.on_blocks_released(number, message.get("released", []))
        match message["say"]:
            case "ready":
                self._schedule.on_process_ready(number)
            case "want":
                self._schedule.on_room_requested(number, message["work"], message["nbytes"])
            case "wrote":
                layout = msgspec.convert(message["layout"], BlockLayout)
                block = self._schedule.lent_block(message["work"])
                self._blocks[block] = (self._blocks[block][0], layout)
                self._schedule.on_block_written(number, message["work"], layout.rows, message["offset"], layout.nbytes)
            case "need":
                self._schedule.on_input_requested(number, message["work"])
            case "done":
                self._record_work(process, message)
                self._schedule.on_work_done(number, message["work"])
            case "failed":
                if process.assignment is not None and process.assignment[0] in self._running:
                    failure = msgspec.convert(message["failure"], DataFailure)
                    self._running[process.assignment[0]].failures[process.assignment[1]] = (failure, received.data)
                self._record_work(process, message)
                self._schedule.on_work_failed(number, message["work"])

    def _record_work(self, process: DataProcessHandle, message: Message) -> None:
        stream, _ = process.assignment or (0, 0)
        running = self._running.get(stream)
        if running is not None:
            meter = running.meter(*process.chain_stage)
            meter.add(msgspec.convert(message["meter"], StageMeter))
            running.record.skipped += msgspec.convert(message["skipped"], list[SkippedRows])
        process.assignment = None
        process.idle_since = time.monotonic()

    def _handle_peer_message(self, peer: Peer, message: Message) -> None:
        member = peer.members.get(message.get("stream", 0))
        for number, blocks in message.get("released", {}).items():
            self._schedule.on_blocks_released(int(number), blocks)
        match message["say"]:
            case "open":
                self._open_stream(peer, message)
            case "passed" if member is not None:
                if member.stream in self._running:
                    self._running[member.stream].record.consumer_waited_s += message["waited"]
                self._schedule.on_blocks_passed(member.stream, member.number, message["num"])
            case "leave" if member is not None:
                self._schedule.on_member_left(member.stream, member.number, frozenset(message["keeps"]))
                self._forget_member(member)
                if message["keeps"]:
                    peer.departed_members.add(member.number)
            case "leave":
                peer.left_early.add(message["stream"])
            case "ask":
                self._answer_query(peer, message)

    def _forget_member(self, member: StreamMember) -> None:
        member.peer.members.pop(member.key, None)
        self._members.pop(member.number, None)
        running = self._running.get(member.stream)
        if running is not None:
            running.members.discard(member.number)
            if not running.members:
                del self._running[member.stream]

    # Opening streams

    def _open_stream(self, peer: Peer, message: Message) -> None:
        if "pipeline" in message:
            with self._lock:
                pipeline, record = self._registered_pipelines.pop(message["pipeline"])
            self._start_stream(peer, message, pipeline, record)
            return
        try:
            dataset = find_dataset(self._datasets, message["dataset"])
        except KeyError as error:
            self._refuse(peer, message, error)
            return
        epoch = message["epoch"]
        if epoch in dataset.pipelines:
            self._join_or_start_stream(peer, message, dataset)
        elif epoch in dataset.opening:
            dataset.opening[epoch].append((peer, message))
        else:
            dataset.opening[epoch] = [(peer, message)]
            threading.Thread(
                target=self._lower_in_thread, args=(dataset, epoch), name=f"paceline-data-epoch-{epoch}", daemon=True
            ).start()

    def _lower_in_thread(self, dataset: _OpeningDataset, epoch: int) -> None:
        """In its own thread: it may list files for a long time, and runs pipelines on this very service."""
        outcome: Pipeline | BaseException
        try:
            outcome = lower_epoch(dataset.plan, epoch, self._executor())
        except BaseException as error:  # noqa: BLE001
            outcome = error
        self._call_in_thread(lambda: self._finish_lowering(dataset, epoch, outcome))

    def _executor(self) -> Executor:
        from paceline.data.exec.process_executor import ProcessExecutor

        return ProcessExecutor(self)

    def _finish_lowering(self, dataset: _OpeningDataset, epoch: int, outcome: Pipeline | BaseException) -> None:
        waiting = dataset.opening.pop(epoch)
        if isinstance(outcome, Pipeline):
            dataset.keep_pipeline(epoch, outcome)
        for peer, message in waiting:
            if peer not in self._peers or message["stream"] in peer.left_early:
                continue
            if isinstance(outcome, Pipeline):
                self._join_or_start_stream(peer, message, dataset)
            else:
                self._refuse(peer, message, outcome)

    def _join_or_start_stream(self, peer: Peer, message: Message, dataset: _OpeningDataset) -> None:
        key = tuple(message[name] for name in ("dataset", "epoch", "unit", "offset", "members", "shared"))
        for number, running in self._running.items():
            if running.key == key and message["member"] not in running.ranks and self._schedule.can_join(number):
                self._join_stream(peer, message, number)
                return
        self._start_stream(peer, message, dataset.pipelines[message["epoch"]], dataset.record, key)

    def _start_stream(
        self, peer: Peer, message: Message, pipeline: Pipeline, record: StatsRecorder, key: Hashable = None
    ) -> None:
        members = message.get("members", 1)
        try:
            jobs = make_stage_jobs(pipeline)
        except Exception as error:  # noqa: BLE001
            self._refuse(peer, message, error)
            return
        spec, bounds = make_stream_spec(pipeline, jobs, message["unit"], message["offset"], members)
        number = self._schedule.open_stream(spec, bounds)
        running = RunningStream(pipeline, jobs, record, key, writable=not message.get("shared", False))
        if members > 1:
            patience_s = SHARED_PATIENCE_S if message["shared"] else PATIENCE_S
            running.patient_until = time.monotonic() + patience_s
        self._running[number] = running
        self._join_stream(peer, message, number)

    def _join_stream(self, peer: Peer, message: Message, number: int) -> None:
        member = StreamMember(self._schedule.next_number(), peer, message["stream"], number)
        running = self._running[number]
        running.ranks.add(message.get("member", 0))
        running.members.add(member.number)
        if len(running.ranks) >= message.get("members", 1):
            running.patient_until = None
        peer.members[member.key] = self._members[member.number] = member
        self._send(peer, {"say": "opened", "stream": member.key, "member": member.number, "writable": running.writable})
        self._schedule.on_member_joined(number, member.number)

    def _refuse(self, peer: Peer, message: Message, error: BaseException) -> None:
        failure, pickled = capture_failure(error, "")
        self._send(peer, {"say": "failed", "stream": message["stream"], "failure": failure}, pickled)

    def _answer_query(self, peer: Peer, message: Message) -> None:
        """In its own thread: the answer may require reading data."""

        def send_answer() -> None:
            reply: Message = {"say": "answer", "stream": message["stream"]}
            try:
                dataset = find_dataset(self._datasets, message["dataset"])
                if message["what"] == "stats":
                    value = self.stream_stats(dataset.record)
                else:
                    value = getattr(DatasetFacts(dataset.plan, self._executor()), message["what"])()
                data = cloudpickle.dumps(value)
            except BaseException as error:  # noqa: BLE001
                failure, data = capture_failure(error, "")
                reply = {"say": "failed", "stream": message["stream"], "failure": failure}
            self._call_in_thread(lambda: self._send(peer, reply, data) if peer in self._peers else None)

        threading.Thread(target=send_answer, name="paceline-data-answer", daemon=True).start()

    # Commands

    def _execute_command(self, command: c.ScheduleCommand) -> None:
        match command:
            case c.LaunchProcess(process=number, pool=pool):
                self._supervisor.start(number, pool)
            case c.RetireProcess(process=number):
                self._supervisor.disconnect(self._supervisor[number])
            case c.AssignWork():
                self._assign(command)
            case c.LendBlock(process=number, work=work, block=block, nbytes=nbytes):
                arena = self._arena_pool.take_arena(nbytes).number
                self._blocks[block] = (arena, None)
                message = {"do": "lend", "work": work, "arena": arena, "nbytes": nbytes}
                self._send(self._supervisor[number], message, arena=arena)
            case c.FeedBlock(process=number, work=work, block=block):
                arena, layout = self._blocks[block]
                message = {"do": "feed", "work": work, "block": block, "arena": arena, "layout": layout}
                self._send(self._supervisor[number], message, arena=arena)
            case c.EndFeed(process=number, work=work):
                self._send(self._supervisor[number], {"do": "feed end", "work": work})
            case c.DropWork(process=number, work=work):
                if number in self._supervisor:  # it may have died meanwhile
                    self._send(self._supervisor[number], {"do": "drop", "work": work})
            case c.AnnounceBlock():
                self._announce(command)
            case c.EndStream(member=number):
                if number in self._members:
                    member = self._members[number]
                    self._send(member.peer, {"say": "end", "stream": member.key})
            case c.FailStream():
                self._fail(command)
            case c.FreeBlock(block=block):
                self._arena_pool.return_arena(self._blocks.pop(block)[0])

    def _assign(self, command: c.AssignWork) -> None:
        process, running = self._supervisor[command.process], self._running[command.stream]
        process.assignment = (command.stream, command.unit)
        task = running.pipeline.tasks[command.unit]
        jobs = running.jobs[task.chain]
        process.chain_stage = (task.chain, command.stage)
        job = jobs[command.stage]
        if job.name not in process.jobs:
            process.jobs.add(job.name)
            self._send(process, {"do": "job", "job": job.name}, job.pickled)
        message = {
            "do": "work",
            "work": command.work,
            "job": job.name,
            "stage": command.stage,
            "last": command.stage == len(jobs) - 1,
            "skip": command.skip,
            "name": task.unit.name,
        }
        try:
            data = cloudpickle.dumps(task.unit) if command.stage == 0 else b""
        except Exception as error:  # noqa: BLE001
            running.failures[command.unit] = capture_failure(error, task.unit.name)
            process.assignment = None
            self._schedule.on_work_failed(command.process, command.work)
            return
        self._send(process, message, data)

    def _announce(self, command: c.AnnounceBlock) -> None:
        member = self._members.get(command.member)
        if member is None:
            return
        arena, layout = self._blocks[command.block]
        message = {
            "say": "block",
            "stream": member.key,
            "block": command.block,
            "unit": command.unit,
            "offset": command.offset,
            "arena": arena,
            "layout": layout,
        }
        self._send(member.peer, message, arena=arena)

    def _fail(self, command: c.FailStream) -> None:
        running = self._running.get(command.stream)
        if running is None:
            return
        failure, pickled = running.describe_failure(command, self._last_death)
        for number in running.members:
            member = self._members[number]
            self._send(member.peer, {"say": "failed", "stream": member.key, "failure": failure}, pickled)


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
