"""The actor around one worker: it has the resources and the place on a node, and runs the worker as its own process.

The worker is the very one that the local engine starts, forked from a zygote of this node, with a socket to this actor
in the place of the driver: signals, CUDA, stack samples and exit statuses are as on one machine. The actor outlives
the worker: the next attempt forks from what has been imported already. All that the worker says is handed on in the
order it came, through one stream that the driver reads; nobody polls.
"""

from __future__ import annotations

import asyncio
import hmac
import os
import socket
import threading
from collections import deque
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import msgspec

from paceline._core import system
from paceline._engine.base import Group, WorkerSpec
from paceline._engine.local.engine import LocalEngine
from paceline._engine.local.launch import keep_apart, prewarm
from paceline._engine.messages import Begin, FromWorker, WorkersStopped, decode_to_worker, encode
from paceline._engine.ray.connect import imported


class Where(msgspec.Struct, frozen=True):
    """Where an actor was placed."""

    node_id: str
    address: str
    host: str
    pid: int
    num_cores: int
    gpus: tuple[str, ...] = ()
    """The devices that Ray gave it, as it names them."""


class Start(msgspec.Struct, frozen=True):
    """A worker to be started: as `WorkerSpec` and `Group` have it."""

    begin: Begin
    log: str
    env: dict[str, str]
    preload: tuple[str, ...]
    preload_later: tuple[str, ...]
    start_method: str


class Said(msgspec.Struct, frozen=True):
    """What came of the worker since the last time, in order."""

    messages: tuple[bytes, ...] = ()
    pid: int = 0
    """Of its process, once it is known."""
    stopped: int | None = None
    """The attempt that is over: its process is gone."""


class Shell:
    def __init__(self, token: str, preload: tuple[str, ...]) -> None:
        self._token = token
        self._calls: deque[Callable[[], None]] = deque()
        self._engine = LocalEngine()
        self._rank = -1
        self._told_pid = 0
        self._loop: asyncio.AbstractEventLoop | None = None
        self._said: asyncio.Queue[Said] = asyncio.Queue()
        self._thread: threading.Thread | None = None
        keep_apart()
        prewarm(*preload)

    async def where(self, token: str) -> Where:
        self._check(token)
        if self._thread is None:
            self._loop = asyncio.get_running_loop()
            self._thread = threading.Thread(target=self._serve, name="paceline-shell", daemon=True)
            self._thread.start()
        runtime = imported().get_runtime_context()
        gpus = runtime.get_accelerator_ids().get("GPU", ())
        return Where(
            node_id=runtime.get_node_id(),
            address=imported().util.get_node_ip_address(),
            host=socket.gethostname(),
            pid=os.getpid(),
            num_cores=system.num_cores(),
            gpus=tuple(map(str, gpus)),
        )

    async def start(self, token: str, start: bytes, job: bytes) -> None:
        self._check(token)
        told = msgspec.json.decode(start, type=Start)
        group = Group(
            told.begin.attempt,
            (WorkerSpec(told.begin, Path(told.log), told.env),),
            job,
            told.preload,
            told.preload_later,
            told.start_method,
        )
        self._post(lambda: self._begin(group))

    async def send(self, token: str, message: bytes) -> None:
        self._check(token)
        decoded = decode_to_worker(message)
        self._post(lambda: self._engine.send(self._rank, decoded))

    async def stop(self, token: str, kill: bool) -> None:
        self._check(token)
        self._post(lambda: self._engine.stop(kill=kill))

    async def signal(self, token: str, signum: int) -> None:
        """Send a signal to the worker's process: for tests."""
        self._check(token)
        pid = self._engine.pid(self._rank)
        if pid > 0:
            try:
                os.kill(pid, signum)
            except ProcessLookupError:
                pass  # It has ended by itself a moment before.

    async def condition(self, token: str) -> bytes | None:
        self._check(token)
        found = self._engine.condition(self._rank)
        return None if found is None else encode(found)

    async def said(self, token: str) -> AsyncIterator[bytes]:
        """The one stream of all that is said, for as long as this actor lives."""
        self._check(token)
        while True:
            yield encode(await self._said.get())

    def _check(self, token: str) -> None:
        if not hmac.compare_digest(token, self._token):
            raise PermissionError("this worker belongs to another run")

    # The thread that owns the engine

    def _post(self, call: Callable[[], None]) -> None:
        self._calls.append(call)
        self._engine.wake()

    def _begin(self, group: Group) -> None:
        self._rank = group.workers[0].begin.rank
        self._told_pid = 0
        self._engine.start(group)

    def _serve(self) -> None:
        while True:
            said = self._engine.wait(None if self._rank < 0 else 0.5)
            while self._calls:
                self._calls.popleft()()
            self._tell(said)

    def _tell(self, said: list[FromWorker | WorkersStopped]) -> None:
        assert self._loop is not None
        pid = self._engine.pid(self._rank) if self._rank >= 0 else 0
        if not said and (not pid or pid == self._told_pid):
            return
        self._told_pid = pid or self._told_pid
        stopped = next((each.attempt for each in said if isinstance(each, WorkersStopped)), None)
        messages = tuple(encode(each) for each in said if not isinstance(each, WorkersStopped))
        self._loop.call_soon_threadsafe(self._said.put_nowait, Said(messages, pid, stopped))
