"""The driver's side of starting processes: one launcher forks from the zygote, the other has fresh interpreters.

Both are handed a worker's descriptors and say, through `exits`, which worker ended, when and how. The zygote serves
all runs of the process and starts as early as somebody asks for it (`prewarm`); for fresh interpreters see `spares`.
"""

import atexit
import contextlib
import functools
import json
import multiprocessing
import os
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import paceline
from paceline._core import settings, system
from paceline._core.codec import FrameReader, frame
from paceline._engine.local import ancestry
from paceline._engine.local.lasting import from_lasting_thread

WORKER = "paceline._worker.main"
"""The module whose `run` a process calls if nothing else is said."""
WORKER_MODULES = ("cloudpickle", "msgspec", "xxhash", "numpy", WORKER)
"""What every worker needs, whatever the framework."""
_LEAVES = signal.SIGHUP
"""What a zygote is told by that its driver ends; it hears the same of its death."""
_LEAVE_S = 1.0


@dataclass(frozen=True)
class Exit:
    token: int
    code: int
    """Minus the signal's number, as in `subprocess`."""
    at: float
    zygote_lost: bool = False
    """It went because the process it was forked from did."""


class Launcher(Protocol):
    def launch(self, token: int, env: dict[str, str], fds: tuple[int, int, int], module: str = WORKER) -> None: ...
    def kill(self, token: int) -> None: ...
    def exits(self) -> list[Exit]: ...
    def ripen(self, modules: tuple[str, ...]) -> None:
        """Have more imported ahead, for groups to come."""
        ...

    def watched(self) -> list[int]:
        """Descriptors that become readable when there may be news."""
        ...

    def pid(self, token: int) -> int:
        """The process of a running worker; 0 where it is not known yet."""
        ...

    def close(self) -> None: ...


class ZygoteProcess:
    """The warm process itself. One for each driver process; engines attach to it."""

    def __init__(self) -> None:
        self.owner = os.getpid()
        self.lost = False
        """Somebody has seen its end, which may be a moment before the system tells of it."""
        # Protects the four below: runs that are driven by several threads share the zygote.
        self._speaking = threading.Lock()
        self._heir: socket.socket | None = None
        self._has_served = False
        self._socket: socket.socket
        self._preloaded: set[str] = set()
        self._process: subprocess.Popen[bytes] | ancestry.Sibling
        forked = ancestry.sibling()
        if forked is not None:
            self._process, self._socket = forked
        else:
            self._process, self._socket = _fresh_zygote()

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def alive(self) -> bool:
        return self.owner == os.getpid() and not self.lost and self._process.poll() is None

    def preload(self, modules: tuple[str, ...]) -> None:
        """Let it import, in its own time; requests to fork wait until it has."""
        with self._speaking:
            new = [module for module in (*WORKER_MODULES, *modules) if module not in self._preloaded]
            if new:
                self._preloaded.update(new)
                for end in (self._socket, self._heir):
                    if end is not None:  # An heir was forked before this was asked for, and would serve without it.
                        send(end, {"do": "preload", "modules": new, "path": sys.path})

    def ripen(self, modules: tuple[str, ...]) -> None:
        """Let a fork of it import more, and serve in its stead once it has: nobody waits for these imports."""
        with self._speaking:
            if self._heir is None and modules:
                self._heir, theirs = socket.socketpair()
                with theirs:
                    request = {"do": "heir", "modules": modules, "path": sys.path}
                    send(self._socket, request, (theirs.fileno(),))

    def attach(self) -> socket.socket:
        """A line of its own for one engine, to the zygote that has imported the most."""
        ours, theirs = socket.socketpair()
        with theirs, self._speaking:
            self._has_served = True
            send(self._ripest(), {"do": "attach"}, (theirs.fileno(),))
        return ours

    def close(self) -> None:
        for end in (self._socket, self._heir):
            if end is not None:
                end.close()
        if self.owner != os.getpid():
            return  # We are a fork of the driver; the zygote is not ours to end.
        if self._has_served:
            # It takes along what workers have started and left behind: one that is killed could not.
            self._process.send_signal(_LEAVES)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(_LEAVE_S)
                return
        # It keeps nothing: no need to let it finish an import first.
        self._process.kill()
        self._process.wait()

    def _ripest(self) -> socket.socket:
        """The heir once it has said that it is ready, and for as long as it lives."""
        if self._heir is not None:
            poll = select.poll()
            poll.register(self._heir, select.POLLIN)
            news = dict(poll.poll(0)).get(self._heir.fileno(), 0)
            if news & (select.POLLHUP | select.POLLERR):
                self._heir.close()  # It has died; the zygote itself still serves.
                self._heir = None
            elif news:
                return self._heir
        return self._socket


def _fresh_zygote() -> tuple[subprocess.Popen[bytes], socket.socket]:
    ours, theirs = socket.socketpair()
    arguments = [str(theirs.fileno()), str(os.getpid()), "bound"]
    if _apart:
        arguments.append("apart")
    with theirs:
        start: functools.partial[subprocess.Popen[bytes]] = functools.partial(
            subprocess.Popen,
            python("from paceline._engine.local.zygote import main; main()", *arguments),
            pass_fds=[theirs.fileno()],
            # One BLAS thread: importing numpy would start more, and a process with threads must not fork.
            # The NVML check: to ask whether CUDA is there must not initialise it in the parent of the workers.
            # Arrow's allocator would start a thread of its own when pyarrow is imported.
            env={
                **os.environ,
                "OPENBLAS_NUM_THREADS": "1",
                "PYTORCH_NVML_BASED_CUDA_CHECK": "1",
                "JE_ARROW_MALLOC_CONF": "background_thread:false",
            },
            stdin=subprocess.DEVNULL,
            process_group=0,
        )
        # The death signal follows the thread that starts a process.
        return from_lasting_thread(start), ours


class ZygoteLauncher:
    """Forks workers in milliseconds from a process that has imported everything already."""

    def __init__(self, preload: tuple[str, ...]) -> None:
        self._zygote = shared_zygote()
        self._zygote.preload(preload)
        self._socket = self._zygote.attach()
        self._frames = FrameReader()
        self._pids: dict[int, int] = {}

    def launch(self, token: int, env: dict[str, str], fds: tuple[int, int, int], module: str = WORKER) -> None:
        self._pids[token] = 0
        request = {
            "do": "fork",
            "token": token,
            "module": module,
            "env": env,
            "path": sys.path,
            "argv": sys.argv,
            "cwd": os.getcwd(),
        }
        send(self._socket, request, fds)

    def kill(self, token: int) -> None:
        send(self._socket, {"do": "kill", "token": token})

    def exits(self) -> list[Exit]:
        exits: list[Exit] = []
        while True:
            try:
                data = self._socket.recv(1 << 16, socket.MSG_DONTWAIT)
            except BlockingIOError:
                return exits
            except ConnectionError:
                data = b""
            if not data:
                # The zygote is gone, and by their death signal so are all workers.
                self._zygote.lost = True
                now = time.time()
                exits += [Exit(token, -signal.SIGKILL, now, zygote_lost=True) for token in self._pids]
                self._pids.clear()
                return exits
            for payload in self._frames.feed(data):
                answer: dict[str, Any] = json.loads(payload)
                if "forked" in answer:
                    self._pids[answer["forked"]] = answer["pid"]
                else:
                    self._pids.pop(answer["exited"], None)
                    exits.append(Exit(answer["exited"], answer["code"], answer["at"]))

    def watched(self) -> list[int]:
        return [self._socket.fileno()]

    def pid(self, token: int) -> int:
        return self._pids.get(token, 0)

    def ripen(self, modules: tuple[str, ...]) -> None:
        self._zygote.ripen(modules)

    def close(self) -> None:
        self._socket.close()


_apart = False
_shared: ZygoteProcess | None = None
_lock = threading.Lock()  # protects `_shared`


def shared_zygote() -> ZygoteProcess:
    """The zygote of this process, started if there is none or if it was lost."""
    global _shared
    with _lock:
        if _shared is None or not _shared.alive:
            if _shared is None:
                atexit.register(close_shared_zygote)
            else:
                _shared.close()
            _shared = ZygoteProcess()
        return _shared


def keep_apart() -> None:
    """Let zygotes be no children of this process: for one that kills its children when it ends, as Ray's do.

    A zygote that is killed cannot end what its workers have started.
    """
    global _apart
    _apart = True


def close_shared_zygote() -> None:
    global _shared
    with _lock:
        zygote, _shared = _shared, None
    if zygote is not None:
        zygote.close()


def end_waiting() -> None:
    """End what waits for runs to come: the zygote, and interpreters. The next run starts its own."""
    close_shared_zygote()
    spares = sys.modules.get("paceline._engine.local.spares")
    if spares is not None:
        spares.end_all()


def launcher(preload: tuple[str, ...], start_method: str = "fork") -> Launcher:
    """As processes are to be started: forked where that is wanted, and safe here."""
    if start_method == "fork" and settings.load().start_method == "fork" and system.fork_is_safe():
        return ZygoteLauncher(preload)
    from paceline._engine.local.spares import SpawnLauncher

    return SpawnLauncher(preload)


def inherited(**changes: str) -> dict[str, str]:
    """The environment of this process, for another one, with changes."""
    return {**os.environ, **changes}


def prewarm(*modules: str) -> None:
    """Start importing what workers will need, while the user's script is still importing."""
    chosen = settings.load()
    if not (chosen.prewarm and chosen.start_method == "fork" and system.fork_is_safe()):
        return
    if system.in_worker or multiprocessing.parent_process() is not None:
        return  # One of our own processes, or a helper process of the user's.
    shared_zygote().preload(modules)


def python(code: str, *arguments: str) -> list[str]:
    """A fresh interpreter that finds this very package, however this one found it, and nothing in the directory."""
    root = str(Path(paceline.__file__).parent.parent)
    return [sys.executable, "-P", "-c", f"import sys; sys.path.insert(0, {root!r}); {code}", *arguments]


def send(end: socket.socket, request: dict[str, Any], fds: tuple[int, ...] = ()) -> None:
    data = memoryview(frame(json.dumps(request).encode()))
    with contextlib.suppress(ConnectionError):  # A zygote that is gone shows as the exit of its workers.
        sent = socket.send_fds(end, [data], fds) if fds else 0
        end.sendall(data[sent:])
