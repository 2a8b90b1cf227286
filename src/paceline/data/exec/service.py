"""The service that runs datasets: one thread that owns data processes, arenas and streams, and hands out blocks.

Those who take rows are members: workers that connect to `address`, or this very process by `connect`. Both speak the
same protocol. What happens next is decided in `schedule`; here it is done.
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
from typing import Any

import cloudpickle
import msgspec

from paceline._core import system
from paceline.data.context import DataContext
from paceline.data.exec import commands as c
from paceline.data.exec.arena import Layout
from paceline.data.exec.failure import Failure, failure
from paceline.data.exec.fleet import Fleet, Process
from paceline.data.exec.lower import Facts, lowered_for
from paceline.data.exec.pipeline import Executor, Pipeline
from paceline.data.exec.remote import Lines
from paceline.data.exec.running import Member, Peer, Running, course_of, jobs_of
from paceline.data.exec.schedule import Schedule
from paceline.data.exec.stats import Meter, Record, StreamStats
from paceline.data.exec.stock import Stock
from paceline.data.exec.wire import Message, Received, Wire
from paceline.data.plan import Node
from paceline.data.transform import Skipped

BLOCKS_AHEAD = 4
"""Of full size, for each process: more would take memory and bring nothing, however much there is."""
PATIENCE_S = 10.0
"""How long members that have not come yet are waited for by those that are there and want more than is kept for all.

A member that comes later has a stream of its own, and the rows are made twice."""
SHARED_PATIENCE_S = 1.0
"""The same where each member reads all rows: some may never come."""
IDLE_S = 15.0
"""After how long without work a process is one too many."""
EPOCHS_KEPT = 2

_LOOK_AGAIN_S = 0.1


@dataclass
class _Dataset:
    plan: Node
    record: Record = field(default_factory=Record)
    pipelines: dict[int, Pipeline] = field(default_factory=dict)
    """By epoch."""
    opening: dict[int, list[tuple[Peer, Message]]] = field(default_factory=dict)
    """By epoch, who waits for the pipeline."""


class Service:
    def __init__(self, context: DataContext | None = None) -> None:
        context = context or DataContext.get_current()
        num_processes = context.num_processes
        limit = min(context.budget, BLOCKS_AHEAD * num_processes * context.target_max_block_size)
        self._schedule = Schedule(limit, num_processes, max_deaths=context.max_unit_failures)
        self._stock = Stock(limit)
        self._selector = selectors.DefaultSelector()
        self._wake_r, self._wake_w = socket.socketpair()
        self._wake_r.setblocking(False)
        self._wake_w.setblocking(False)
        self._selector.register(self._wake_r, selectors.EVENT_READ, "wake")
        self._fleet = Fleet(self._selector, context)
        self._posted: deque[Callable[[], None]] = deque()
        self._peers: set[Peer] = set()
        self._members: dict[int, Member] = {}
        self._running: dict[int, Running] = {}
        self._blocks: dict[int, tuple[int, Layout | None]] = {}
        """For each block, its arena and what lies there."""
        self._datasets: dict[str, _Dataset] = {}
        self._given: dict[str, tuple[Pipeline, Record]] = {}
        self._listener: socket.socket | None = None
        self._address = ""
        self._directory: str | None = None
        self._closing = False
        self._owner = os.getpid()
        self.lines = Lines(self.connect)
        """For members in this process."""
        self._error: BaseException | None = None
        self._lock = threading.Lock()  # protects `_given` and `_address`
        self._thread = threading.Thread(target=self._serve, name="paceline-data", daemon=True)
        self._thread.start()

    # For those in this process

    @property
    def alive(self) -> bool:
        """False in a process that was forked from the one that it serves."""
        return self._owner == os.getpid() and not self._closing and self._thread.is_alive()

    @property
    def address(self) -> str:
        """Where workers connect to."""
        with self._lock:
            if not self._address:
                self._listener, self._address, self._directory = _listening()
                listener = self._listener
                self._post(lambda: self._register(listener))
            return self._address

    def add(self, name: str, plan: Node) -> None:
        """Have a dataset served under a name; another one of the name is replaced."""
        self._datasets[name] = _Dataset(plan)

    def connect(self) -> Wire:
        """A line to the service for a member in this process."""
        ours, theirs = socket.socketpair()
        theirs.setblocking(False)
        self._post(lambda: self._greet(theirs))
        return Wire(ours)

    def give(self, pipeline: Pipeline, record: Record) -> str:
        """A name under which a pipeline can be opened, once."""
        name = secrets.token_hex(8)
        with self._lock:
            self._given[name] = (pipeline, record)
        return name

    def take_back(self, name: str) -> None:
        with self._lock:
            self._given.pop(name, None)

    def stats(self, name: str) -> StreamStats:
        return self.seen(self._datasets[name].record)

    def all_stats(self) -> dict[str, StreamStats]:
        """Of all datasets, as far as they can be read without waiting for the thread that keeps them."""
        found = {}
        for name in list(self._datasets):
            with contextlib.suppress(RuntimeError):  # a stage was added while it was read: the next time it is there
                found[name] = self.stats(name)
        return found

    def seen(self, record: Record) -> StreamStats:
        return record.seen(self._schedule.peak, self._schedule.limit)

    @property
    def busy(self) -> bool:
        return bool(self._running)

    def pids(self) -> list[int]:
        """The data processes that run now."""
        return [pid for process in self._fleet.all if (pid := self._fleet.pid(process.number))]

    def close(self) -> None:
        """End all streams and processes, and let all memory go that nobody has views of."""
        if self._owner != os.getpid() or self._closing:
            return
        self._closing = True
        self._wake()
        self._thread.join()
        self.lines.close()

    # The thread

    def _serve(self) -> None:
        try:
            while not self._closing:
                self._turn()
        except BaseException as error:
            self._error = error
            raise
        finally:
            self._end()

    def _turn(self) -> None:
        for key, mask in self._selector.select(self._timeout()):
            match key.data:
                case "wake":
                    with contextlib.suppress(BlockingIOError):
                        self._wake_r.recv(4096)
                case "listener":
                    self._accept()
                case Process() as process:
                    self._serve_process(process, mask)
                case Peer() as peer:
                    self._serve_peer(peer, mask)
        while self._posted:
            self._posted.popleft()()
        for death in self._fleet.deaths():
            for received in death.last_words:
                self._hear_process(death.process, received)
            if death.process.at is not None:
                stream, unit = death.process.at
                if stream in self._running:
                    self._running[stream].deaths[unit] = death.how
            else:
                self._last_death = death.how
            self._schedule.died(death.process.number)
        self._look_at_the_clock()
        while commands := self._schedule.commands():
            for command in commands:
                self._obey(command)
        self._tell_of_gone_arenas()

    _last_death = "ended"

    def _timeout(self) -> float | None:
        if self._fleet.must_look:
            return _LOOK_AGAIN_S
        if any(running.patient_until is not None for running in self._running.values()):
            return _LOOK_AGAIN_S
        return IDLE_S / 2 if self._fleet.all else None

    def _look_at_the_clock(self) -> None:
        now = time.monotonic()
        for number, running in self._running.items():
            if running.patient_until is not None and now >= running.patient_until:
                running.patient_until = None
                self._schedule.hurry(number)
        for process in self._fleet.all:
            if process.at is None and now - process.idle_since > IDLE_S:
                process.idle_since = now
                self._schedule.idled(process.number)

    def _end(self) -> None:
        self._closing = True
        self._fleet.close()
        for peer in self._peers:
            peer.wire.close()
        for end in (self._listener, self._wake_r, self._wake_w):
            if end is not None:
                end.close()
        if self._directory is not None:
            shutil.rmtree(self._directory, ignore_errors=True)
        self._stock.close()
        self._selector.close()

    # Lines

    def _post(self, call: Callable[[], None]) -> None:
        self._posted.append(call)
        self._wake()

    def _wake(self) -> None:
        with contextlib.suppress(BlockingIOError, OSError):
            self._wake_w.send(b"\0")

    def _register(self, listener: socket.socket) -> None:
        self._selector.register(listener, selectors.EVENT_READ, "listener")

    def _accept(self) -> None:
        assert self._listener is not None
        try:
            end, _ = self._listener.accept()
        except OSError:
            return  # whoever it was has gone again
        if _is_ours(end):
            end.setblocking(False)
            self._greet(end)
        else:
            end.close()

    def _greet(self, end: socket.socket) -> None:
        peer = Peer(Wire(end))
        self._peers.add(peer)
        self._selector.register(end, selectors.EVENT_READ, peer)

    def _serve_process(self, process: Process, mask: int) -> None:
        if mask & selectors.EVENT_READ:
            heard = process.wire.hear()
            if heard is None:
                self._fleet.hang_up(process)  # its exit will say the rest
                return
            for received in heard:
                self._hear_process(process, received)
        self._flush(process.wire, process)

    def _serve_peer(self, peer: Peer, mask: int) -> None:
        if mask & selectors.EVENT_READ:
            heard = peer.wire.hear()
            if heard is None:
                self._hang_up(peer)
                return
            for received in heard:
                self._hear_peer(peer, received.message)
        self._flush(peer.wire, peer)

    def _flush(self, wire: Wire, owner: Process | Peer) -> None:
        try:
            wire.flush()
        except ConnectionError:
            return  # the end of the line is heard when it is read
        if wire.end.fileno() >= 0:
            wanted = selectors.EVENT_READ | (selectors.EVENT_WRITE if wire.unsent else 0)
            self._selector.modify(wire.end, wanted, owner)

    def _say(self, to: Process | Peer, message: Message, data: bytes = b"", arena: int | None = None) -> None:
        fds: tuple[int, ...] = ()
        if arena is not None and arena not in to.arenas:
            to.arenas.add(arena)
            message["arenas"], fds = [arena], (self._stock.fd(arena),)
        if to.forget:
            message["forget"], to.forget = to.forget, []
        if to.wire.end.fileno() < 0:
            return
        try:
            to.wire.say(message, data, fds)
        except ConnectionError:
            return  # as in `_flush`
        if to.wire.unsent:
            self._selector.modify(to.wire.end, selectors.EVENT_READ | selectors.EVENT_WRITE, to)

    def _tell_of_gone_arenas(self) -> None:
        """With whatever is said next: a mapping of nothing takes no memory."""
        gone, self._stock.gone = self._stock.gone, []
        for number in gone:
            known: list[Process | Peer] = [*self._peers, *self._fleet.all]
            for each in known:
                if number in each.arenas:
                    each.arenas.discard(number)
                    each.forget.append(number)

    def _hang_up(self, peer: Peer) -> None:
        self._selector.unregister(peer.wire.end)
        peer.wire.close()
        self._peers.discard(peer)
        for number in peer.left:
            self._schedule.gone(number)
        for member in list(peer.members.values()):
            self._schedule.gone(member.number)
            self._forget_member(member)

    # What is heard

    def _hear_process(self, process: Process, received: Received) -> None:
        message, number = received.message, process.number
        self._schedule.released(number, message.get("released", []))
        match message["say"]:
            case "ready":
                self._schedule.ready(number)
            case "want":
                self._schedule.wants(number, message["work"], message["nbytes"])
            case "wrote":
                layout = msgspec.convert(message["layout"], Layout)
                block = self._schedule.lent_to(message["work"])
                self._blocks[block] = (self._blocks[block][0], layout)
                self._schedule.wrote(number, message["work"], layout.rows, message["offset"], layout.nbytes)
            case "need":
                self._schedule.needs(number, message["work"])
            case "done":
                self._worked(process, message)
                self._schedule.done(number, message["work"])
            case "failed":
                if process.at is not None and process.at[0] in self._running:
                    told = msgspec.convert(message["failure"], Failure)
                    self._running[process.at[0]].failures[process.at[1]] = (told, received.data)
                self._worked(process, message)
                self._schedule.failed(number, message["work"])

    def _worked(self, process: Process, message: Message) -> None:
        stream, _ = process.at or (0, 0)
        running = self._running.get(stream)
        if running is not None:
            meter = running.meter(*process.chain_stage)
            meter.add(msgspec.convert(message["meter"], Meter))
            running.record.skipped += msgspec.convert(message["skipped"], list[Skipped])
        process.at = None
        process.idle_since = time.monotonic()

    def _hear_peer(self, peer: Peer, message: Message) -> None:
        member = peer.members.get(message.get("stream", 0))
        for number, blocks in message.get("released", {}).items():
            self._schedule.released(int(number), blocks)
        match message["say"]:
            case "open":
                self._open(peer, message)
            case "passed" if member is not None:
                if member.stream in self._running:
                    self._running[member.stream].record.consumer_waited_s += message["waited"]
                self._schedule.passed(member.stream, member.number, message["num"])
            case "leave" if member is not None:
                self._schedule.left(member.stream, member.number, frozenset(message["keeps"]))
                self._forget_member(member)
                if message["keeps"]:
                    peer.left.add(member.number)
            case "leave":
                peer.left_early.add(message["stream"])
            case "ask":
                self._answer(peer, message)

    def _forget_member(self, member: Member) -> None:
        member.peer.members.pop(member.key, None)
        self._members.pop(member.number, None)
        running = self._running.get(member.stream)
        if running is not None:
            running.members.discard(member.number)
            if not running.members:
                del self._running[member.stream]

    # Opening

    def _open(self, peer: Peer, message: Message) -> None:
        if "pipeline" in message:
            with self._lock:
                pipeline, record = self._given.pop(message["pipeline"])
            self._begin(peer, message, pipeline, record)
            return
        dataset = self._datasets.get(message["dataset"])
        if dataset is None:
            known = ", ".join(map(repr, self._datasets)) or "none"
            error = KeyError(f"there is no dataset {message['dataset']!r}; there are: {known}")
            self._refuse(peer, message, error)
            return
        epoch = message["epoch"]
        if epoch in dataset.pipelines:
            self._join_or_begin(peer, message, dataset)
        elif epoch in dataset.opening:
            dataset.opening[epoch].append((peer, message))
        else:
            dataset.opening[epoch] = [(peer, message)]
            threading.Thread(
                target=self._lower, args=(dataset, epoch), name=f"paceline-data-epoch-{epoch}", daemon=True
            ).start()

    def _lower(self, dataset: _Dataset, epoch: int) -> None:
        """In a thread of its own: it may list files for long, and runs pipelines on this very service."""
        outcome: Pipeline | BaseException
        try:
            outcome = lowered_for(dataset.plan, epoch, self._executor())
        except BaseException as error:  # noqa: BLE001  those who wait are told
            outcome = error
        self._post(lambda: self._lowered(dataset, epoch, outcome))

    def _executor(self) -> Executor:
        from paceline.data.exec.processes import ProcessExecutor

        return ProcessExecutor(self)

    def _lowered(self, dataset: _Dataset, epoch: int, outcome: Pipeline | BaseException) -> None:
        waiting = dataset.opening.pop(epoch)
        if isinstance(outcome, Pipeline):
            dataset.pipelines[epoch] = outcome
            for old in sorted(dataset.pipelines)[:-EPOCHS_KEPT]:
                if old != epoch:
                    del dataset.pipelines[old]
        for peer, message in waiting:
            if peer not in self._peers or message["stream"] in peer.left_early:
                continue
            if isinstance(outcome, Pipeline):
                self._join_or_begin(peer, message, dataset)
            else:
                self._refuse(peer, message, outcome)

    def _join_or_begin(self, peer: Peer, message: Message, dataset: _Dataset) -> None:
        key = tuple(message[name] for name in ("dataset", "epoch", "unit", "offset", "members", "shared"))
        for number, running in self._running.items():
            if running.key == key and message["member"] not in running.ranks and self._schedule.can_join(number):
                self._join(peer, message, number)
                return
        self._begin(peer, message, dataset.pipelines[message["epoch"]], dataset.record, key)

    def _begin(self, peer: Peer, message: Message, pipeline: Pipeline, record: Record, key: Hashable = None) -> None:
        members = message.get("members", 1)
        try:
            jobs = jobs_of(pipeline)
        except Exception as error:  # noqa: BLE001  a function that cannot be pickled; who opened is told
            self._refuse(peer, message, error)
            return
        course, bounds = course_of(pipeline, jobs, message["unit"], message["offset"], members)
        number = self._schedule.opened(course, bounds)
        running = Running(pipeline, jobs, record, key, writable=not message.get("shared", False))
        if members > 1:
            patience_s = SHARED_PATIENCE_S if message["shared"] else PATIENCE_S
            running.patient_until = time.monotonic() + patience_s
        self._running[number] = running
        self._join(peer, message, number)

    def _join(self, peer: Peer, message: Message, number: int) -> None:
        member = Member(self._schedule.number(), peer, message["stream"], number)
        running = self._running[number]
        running.ranks.add(message.get("member", 0))
        running.members.add(member.number)
        if len(running.ranks) >= message.get("members", 1):
            running.patient_until = None
        peer.members[member.key] = self._members[member.number] = member
        self._say(peer, {"say": "opened", "stream": member.key, "member": member.number, "writable": running.writable})
        self._schedule.joined(number, member.number)

    def _refuse(self, peer: Peer, message: Message, error: BaseException) -> None:
        told, pickled = failure(error, "")
        self._say(peer, {"say": "failed", "stream": message["stream"], "failure": told}, pickled)

    def _answer(self, peer: Peer, message: Message) -> None:
        """In a thread of its own: what is asked for may have to be read."""
        dataset = self._datasets.get(message["dataset"])

        def answer() -> None:
            said: Message = {"say": "answer", "stream": message["stream"]}
            try:
                if dataset is None:
                    raise KeyError(f"there is no dataset {message['dataset']!r}")
                value = self._known(message["what"], dataset)
                data = cloudpickle.dumps(value)
            except BaseException as error:  # noqa: BLE001  who asked is told
                told, data = failure(error, "")
                said = {"say": "failed", "stream": message["stream"], "failure": told}
            self._post(lambda: self._say(peer, said, data) if peer in self._peers else None)

        threading.Thread(target=answer, name="paceline-data-answer", daemon=True).start()

    def _known(self, what: str, dataset: _Dataset) -> Any:
        if what == "stats":
            return self.seen(dataset.record)
        return getattr(Facts(dataset.plan, self._executor()), what)()

    # What is decided

    def _obey(self, command: c.Command) -> None:
        match command:
            case c.Launch(process=number, pool=pool):
                self._fleet.start(number, pool)
            case c.Retire(process=number):
                self._fleet.retire(number)
            case c.Assign():
                self._assign(command)
            case c.Lend(process=number, work=work, block=block, nbytes=nbytes):
                arena = self._stock.take(nbytes).number
                self._blocks[block] = (arena, None)
                message = {"do": "lend", "work": work, "arena": arena, "nbytes": nbytes}
                self._say(self._fleet[number], message, arena=arena)
            case c.Feed(process=number, work=work, block=block):
                arena, layout = self._blocks[block]
                message = {"do": "feed", "work": work, "block": block, "arena": arena, "layout": layout}
                self._say(self._fleet[number], message, arena=arena)
            case c.FeedEnd(process=number, work=work):
                self._say(self._fleet[number], {"do": "feed end", "work": work})
            case c.Drop(process=number, work=work):
                if number in self._fleet:  # it may have died since
                    self._say(self._fleet[number], {"do": "drop", "work": work})
            case c.Announce():
                self._announce(command)
            case c.End(member=number):
                if number in self._members:
                    member = self._members[number]
                    self._say(member.peer, {"say": "end", "stream": member.key})
            case c.Fail():
                self._fail(command)
            case c.Free(block=block):
                self._stock.give_back(self._blocks.pop(block)[0])

    def _assign(self, command: c.Assign) -> None:
        process, running = self._fleet[command.process], self._running[command.stream]
        process.at = (command.stream, command.unit)
        task = running.pipeline.tasks[command.unit]
        jobs = running.jobs[task.chain]
        process.chain_stage = (task.chain, command.stage)
        job = jobs[command.stage]
        if job.name not in process.jobs:
            process.jobs.add(job.name)
            self._say(process, {"do": "job", "job": job.name}, job.pickled)
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
        except Exception as error:  # noqa: BLE001  of a user's object; those who wait for the rows are told
            running.failures[command.unit] = failure(error, task.unit.name)
            process.at = None
            self._schedule.failed(command.process, command.work)
            return
        self._say(process, message, data)

    def _announce(self, command: c.Announce) -> None:
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
        self._say(member.peer, message, arena=arena)

    def _fail(self, command: c.Fail) -> None:
        running = self._running.get(command.stream)
        if running is None:
            return
        told, pickled = running.failure(command, self._last_death)
        for number in running.members:
            member = self._members[number]
            self._say(member.peer, {"say": "failed", "stream": member.key, "failure": told}, pickled)


def _listening() -> tuple[socket.socket, str, str | None]:
    """A socket that workers of this user can connect to, its address, and the directory to remove in the end.

    On Linux it has a name that goes with it; elsewhere it is a file in a private directory.
    """
    listener = socket.socket(socket.AF_UNIX)
    directory = None
    if system.on_linux():
        address = f"@paceline-data-{secrets.token_hex(16)}"
        listener.bind("\0" + address[1:])
    else:
        directory = tempfile.mkdtemp(prefix="paceline-data-")
        address = str(Path(directory) / "service")
        listener.bind(address)
    listener.listen(128)
    listener.setblocking(False)
    return listener, address, directory


def _is_ours(end: socket.socket) -> bool:
    """Whether the other end is a process of this user, where the system says."""
    if not hasattr(socket, "SO_PEERCRED"):
        return True
    data = end.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    return bool(struct.unpack("3i", data)[1] == os.getuid())
