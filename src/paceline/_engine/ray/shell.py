"""The actor around one worker: it has the resources and the place on a node, and runs the worker as its own process.

The worker is the very one that the local engine starts, forked from a zygote of this node, with a socket to this actor
in the place of the driver: signals, CUDA, stack samples and exit statuses are as on one machine. The actor outlives
the worker: the next attempt forks from what has been imported already. All that the worker says is handed on in the
order it came, through one stream that the driver reads; nobody polls. Of a run in a store, whose logs lie on this
node alone, what the worker printed goes the same way.
"""

from __future__ import annotations

import asyncio
import hmac
import os
import platform
import socket
import threading
from collections import deque
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import msgspec
from msgspec.structs import replace

import paceline
from paceline._core import settings, system
from paceline._engine.base import Group, WorkerSpec
from paceline._engine.local.engine import LocalEngine
from paceline._engine.local.launch import keep_apart, prewarm
from paceline._engine.messages import Begin, FromWorker, Guest, WorkersStopped, decode_to_worker, encode
from paceline._engine.ray import shared
from paceline._engine.ray.connect import imported
from paceline._engine.ray.guest import mentions_ray
from paceline._engine.ray.printed import Printed
from paceline._engine.ray.travel import Kit, lacking, settle, settle_environment
from paceline._engine.ray.unpack import Held

_LOOK_S = 0.5
"""How often a worker's log, and its pid, are looked for."""


class Where(msgspec.Struct, frozen=True):
    """Where an actor was placed."""

    node_id: str
    address: str
    host: str
    pid: int
    num_cores: int
    gpus: tuple[str, ...] = ()
    """The devices that Ray gave it, as it names them."""
    version: str = ""
    """Of Paceline and of Python there."""
    python: str = ""
    lacks: str = ""
    """Files that it would need and that did not travel."""


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
    printed: bytes = b""
    """By the worker, before it said this; only where the driver cannot see the log."""


class Shell:
    def __init__(self, token: str, preload: tuple[str, ...], kit: bytes = b"{}") -> None:
        self._token = token
        self._kit = msgspec.json.decode(kit, type=Kit)
        settle_environment(self._kit)
        self._calls: deque[Callable[[], None]] = deque()
        self._engine = LocalEngine()
        self._rank = -1
        self._told_pid = 0
        self._printed: Printed | None = None
        """Its log, where nobody but this node sees it."""
        self._held: Held | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._said: asyncio.Queue[Said | Exception] = asyncio.Queue()
        self._settling = asyncio.Lock()
        self._lacks = ""
        self._thread: threading.Thread | None = None
        keep_apart()
        prewarm(*preload)

    async def where(self, token: str, files: list[Any] | None = None) -> Where:
        """`files`: a reference to what travels with the run, which is fetched only where the node lacks some of it."""
        self._check(token)
        async with self._settling:
            if self._thread is None:
                self._loop = asyncio.get_running_loop()
                missing = await asyncio.to_thread(lacking, self._kit)
                if missing and self._kit.parcel.too_large:
                    self._lacks, missing = self._kit.parcel.too_large, ()
                data = await files[0] if missing and files else b""
                await asyncio.to_thread(settle, self._kit, missing, data)
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
            version=paceline.__version__,
            python=platform.python_version(),
            lacks=self._lacks,
        )

    async def sees(self, token: str, asked: bytes) -> str:
        """What is wrong with the run's storage as this node sees it; empty where all is well."""
        self._check(token)
        node_id = imported().get_runtime_context().get_node_id()
        return await asyncio.to_thread(shared.answered, msgspec.json.decode(asked, type=shared.Asked), node_id)

    async def start(self, token: str, start: bytes, job: bytes) -> None:
        self._check(token)
        told = msgspec.json.decode(start, type=Start)
        begin, log = told.begin, Path(told.log)
        printed: Printed | None = None
        if begin.store is not None:
            spool = self._spool(Path(begin.run_path))
            log = spool / log.relative_to(begin.run_path)
            begin = replace(begin, run_path=str(spool))
            printed = Printed(log)
        if address := told.env.get("RAY_ADDRESS"):
            begin = replace(begin, guest=Guest(address, self._kit.namespace, mentions_ray(job)))
        group = Group(
            begin.attempt,
            (WorkerSpec(begin, log, told.env),),
            job,
            told.preload,
            told.preload_later,
            told.start_method,
        )
        self._post(lambda: self._begin(group, printed))

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
        while isinstance(said := await self._said.get(), Said):
            yield encode(said)
        raise said

    def _check(self, token: str) -> None:
        if not hmac.compare_digest(token, self._token):
            raise PermissionError("this worker belongs to another run")

    def _spool(self, run_path: Path) -> Path:
        """Where files of a run in a store lie on this node, apart from the driver's; they go with the last actor."""
        node_id = imported().get_runtime_context().get_node_id()
        place = settings.spool_root() / run_path.parent.name / f"{run_path.name}.{node_id[:12]}"
        if self._held is None or self._held.path != place:
            self._held = Held(place)
            self._held.take(lambda path: None)
        return place

    # The thread that owns the engine

    def _post(self, call: Callable[[], None]) -> None:
        self._calls.append(call)
        self._engine.wake()

    def _begin(self, group: Group, printed: Printed | None) -> None:
        self._printed = printed
        self._rank = group.workers[0].begin.rank
        self._told_pid = 0
        self._engine.start(group)

    def _serve(self) -> None:
        try:
            while True:
                said = self._engine.wait(None if self._rank < 0 else _LOOK_S)
                while self._calls:
                    self._calls.popleft()()
                self._tell(said)
        except Exception as error:  # noqa: BLE001  it ends the stream, and so is told to the driver
            self._pass_on(error)

    def _tell(self, said: list[FromWorker | WorkersStopped]) -> None:
        pid = self._engine.pid(self._rank) if self._rank >= 0 else 0
        stopped = next((each.attempt for each in said if isinstance(each, WorkersStopped)), None)
        printed = self._printed.taken() if self._printed is not None else b""
        # Whole, before what it said last: a traceback is in the log before the failure is heard of.
        while self._printed is not None and said and (more := self._printed.taken()):
            self._pass_on(Said(printed=printed))
            printed = more
        if not said and not printed and (not pid or pid == self._told_pid):
            return
        self._told_pid = pid or self._told_pid
        messages = tuple(encode(each) for each in said if not isinstance(each, WorkersStopped))
        self._pass_on(Said(messages, pid, stopped, printed))

    def _pass_on(self, said: Said | Exception) -> None:
        assert self._loop is not None
        self._loop.call_soon_threadsafe(self._said.put_nowait, said)
