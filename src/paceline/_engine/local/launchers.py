"""The driver's side of starting processes: one launcher forks from the zygote, the other starts fresh interpreters.

Both take a worker's file descriptors and report through `take_exits` which worker exited, when and how. The zygote
serves all runs of the process and starts at the first request; for the other see `spare_interpreters`.
"""

import atexit
import contextlib
import multiprocessing
import os
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Collection
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue
from subprocess import Popen
from typing import Any, Protocol, TypeVar

import paceline
from paceline._core import settings, system
from paceline._core.process_setup import prepare_driver
from paceline._engine.local.zygote_channel import Channel, ForkedZygote, fork_zygote

WORKER_MODULE = "paceline._worker.main"
"""The default module whose `run` a new process calls."""
WORKER_MODULES = ("cloudpickle", "msgspec", "xxhash", "numpy", WORKER_MODULE, "paceline.train.session")
"""What every worker needs, whatever the framework. The last has what train functions call, such as `report`."""
_EXIT_SIGNAL = signal.SIGHUP
"""Asks a zygote to exit because its driver does; the system sends the same signal when the driver dies."""
_EXIT_TIMEOUT_S = 1.0


@dataclass(frozen=True)
class ProcessExit:
    token: int
    code: int
    """The negative signal number if a signal ended the process, as in `subprocess`."""
    at: float
    zygote_lost: bool = False
    """It died because the zygote it was forked from did."""


class Launcher(Protocol):
    def launch(
        self, token: int, env: dict[str, str], fds: tuple[int, int, int], module: str = WORKER_MODULE
    ) -> None: ...
    def kill(self, token: int) -> None: ...
    def take_exits(self) -> list[ProcessExit]: ...
    def preload_ahead(self, modules: tuple[str, ...], imported: Collection[str]) -> bool:
        """Preload more modules, for later worker groups; `imported` are those that workers have needed so far.

        False if it is too early to know what a restart needs."""

    def watched_fds(self) -> list[int]:
        """Return descriptors that become readable when there may be an exit to report."""

    def pid(self, token: int) -> int:
        """Return the pid of a running worker; 0 if it is not known yet."""

    def close(self) -> None: ...


class ZygoteProcess:
    """The zygote process itself. One per driver process; engines attach to it."""

    def __init__(self) -> None:
        self.owner = os.getpid()
        self.is_lost = False
        """Its end was detected, possibly a moment before the system reports it."""
        # Protects the four below: runs driven by several threads share the zygote.
        self._lock = threading.Lock()
        self._channel: Channel
        self._successor: Channel | None = None
        self._has_served = False
        self._preloaded: set[str] = set()
        self._process: Popen[bytes] | ForkedZygote
        self._process, self._channel = fork_zygote() or _spawn_zygote()

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def is_alive(self) -> bool:
        return self.owner == os.getpid() and not self.is_lost and self._process.poll() is None

    def preload(self, modules: tuple[str, ...]) -> None:
        """Start importing modules in the zygote without waiting; fork requests wait until it is done."""
        with self._lock:
            new = [module for module in (*WORKER_MODULES, *modules) if module not in self._preloaded]
            if new:
                self._preloaded.update(new)
                # A successor was forked before this request, and would serve without these.
                for channel in filter(None, (self._channel, self._successor)):
                    channel.send({"do": "preload", "modules": new, "path": sys.path})

    def preload_in_successor(self, modules: tuple[str, ...]) -> None:
        """Let a fork of the zygote import more modules and replace it afterwards, so nobody waits for these imports."""
        with self._lock:
            if self._successor is None and modules:
                request = {"do": "successor", "modules": modules, "path": sys.path}
                self._successor = _open_channel(self._channel, request)

    def attach(self) -> Channel:
        """Open a channel for one engine, to the zygote that has preloaded the most."""
        with self._lock:
            self._has_served = True
            return _open_channel(self._serving_channel(), {"do": "attach"})

    def close(self) -> None:
        for channel in filter(None, (self._channel, self._successor)):
            channel.close()
        if self.owner != os.getpid():
            return  # This process is a fork of the driver; the zygote is not ours to end.
        if self._has_served:
            # Let it exit by itself: a killed zygote could not clean up what workers left behind.
            self._process.send_signal(_EXIT_SIGNAL)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(_EXIT_TIMEOUT_S)
                return
        # It holds nothing worth keeping: no need to let it finish an import first.
        self._process.kill()
        self._process.wait()

    def _serving_channel(self) -> Channel:
        """Return the successor's channel once it is ready and while it lives, else the zygote's own."""
        if self._successor is not None:
            news = self._successor.poll()
            if news & (select.POLLHUP | select.POLLERR):
                self._successor.close()  # It has died; the zygote itself still serves.
                self._successor = None
            elif news:
                return self._successor
        return self._channel


def _open_channel(zygote: Channel, request: dict[str, Any]) -> Channel:
    """Send a request with the other end of a new channel."""
    ours, theirs = socket.socketpair()
    with theirs:
        zygote.send(request, (theirs.fileno(),))
    return Channel(ours)


def _spawn_zygote() -> tuple[Popen[bytes], Channel]:
    ours, theirs = socket.socketpair()
    arguments = [str(theirs.fileno()), str(os.getpid()), "bound"]
    if _zygotes_detached:
        arguments.append("apart")
    command = python_command("from paceline._engine.local.zygote import main; main()", *arguments)
    # One BLAS thread: importing numpy would start more, and a process with threads must not fork. The NVML check:
    # asking whether CUDA is available must not initialise it in the parent of the workers. Arrow's allocator would
    # start a thread of its own when pyarrow is imported.
    env = derive_environment(
        OPENBLAS_NUM_THREADS="1",
        PYTORCH_NVML_BASED_CUDA_CHECK="1",
        JE_ARROW_MALLOC_CONF="background_thread:false",
    )
    with theirs:
        return spawn_process(command, theirs, env, process_group=0), Channel(ours)


class ZygoteLauncher:
    """Forks workers in milliseconds from a process that has already imported everything."""

    def __init__(self, preload: tuple[str, ...]) -> None:
        self._zygote = shared_zygote()
        self._zygote.preload(preload)
        self._channel = self._zygote.attach()
        self._pids: dict[int, int] = {}

    def launch(self, token: int, env: dict[str, str], fds: tuple[int, int, int], module: str = WORKER_MODULE) -> None:
        self._pids[token] = 0
        self._channel.send({"do": "fork", "token": token, "env": env, **make_start_order(module)}, fds)

    def kill(self, token: int) -> None:
        self._channel.send({"do": "kill", "token": token})

    def take_exits(self) -> list[ProcessExit]:
        exits: list[ProcessExit] = []
        while self._channel.poll():
            if (answers := self._channel.receive()) is None:
                # The zygote is gone, and its death signal has killed all workers.
                self._zygote.is_lost = True
                exits += [ProcessExit(token, -signal.SIGKILL, time.time(), zygote_lost=True) for token in self._pids]
                self._pids.clear()
                break
            for answer in answers:
                if "forked" in answer:
                    self._pids[answer["forked"]] = answer["pid"]
                else:
                    self._pids.pop(answer["exited"], None)
                    exits.append(ProcessExit(answer["exited"], answer["code"], answer["at"]))
        return exits

    def watched_fds(self) -> list[int]:
        return [self._channel.socket.fileno()]

    def pid(self, token: int) -> int:
        return self._pids.get(token, 0)

    def preload_ahead(self, modules: tuple[str, ...], imported: Collection[str]) -> bool:
        needed = tuple(module for module in modules if module in imported)
        self._zygote.preload_in_successor(needed)
        return bool(needed) or not modules

    def close(self) -> None:
        self._channel.close()


_zygotes_detached = False
_shared: ZygoteProcess | None = None
_lock = threading.Lock()  # protects `_shared`


def shared_zygote() -> ZygoteProcess:
    """Return the zygote of this process, and start one if there is none or it was lost."""
    global _shared
    prepare_driver()
    with _lock:
        if _shared is None or not _shared.is_alive:
            if _shared is None:
                atexit.register(close_shared_zygote)
            else:
                _shared.close()
            _shared = ZygoteProcess()
        return _shared


def detach_zygotes() -> None:
    """Make zygotes grandchildren: Ray's workers kill their children at exit, and a killed zygote cannot clean up."""
    global _zygotes_detached
    _zygotes_detached = True


def close_shared_zygote() -> None:
    global _shared
    with _lock:
        zygote, _shared = _shared, None
    if zygote is not None:
        zygote.close()


def close_prewarmed_processes() -> None:
    """Close what waits for later runs: the zygote and the spare interpreters. The next run starts its own."""
    close_shared_zygote()
    spares = sys.modules.get("paceline._engine.local.spare_interpreters")
    if spares is not None:
        spares._spares.close()


def choose_launcher(preload: tuple[str, ...], start_method: str = "fork") -> Launcher:
    """Return a launcher: the zygote's where forking is wanted and safe here, else one of fresh interpreters."""
    if start_method == "fork" and settings.start_method() == "fork" and system.is_fork_safe():
        return ZygoteLauncher(preload)
    from paceline._engine.local.spare_interpreters import SpawnLauncher

    return SpawnLauncher(preload)


def derive_environment(**changes: str) -> dict[str, str]:
    """Return this process's environment with changes, for another process."""
    return {**os.environ, **changes}


def prewarm(*modules: str) -> None:
    """Start to import what workers will need, while the user's script is still importing."""
    chosen = settings.load()
    if not (chosen.prewarm and chosen.start_method == "fork" and system.is_fork_safe()):
        return
    if system.in_worker or multiprocessing.parent_process() is not None:
        return  # One of our own processes, or a helper process of the user's.
    shared_zygote().preload(modules)


def python_command(code: str, *arguments: str) -> list[str]:
    """Return the command of a fresh interpreter that finds this very package and imports nothing from the directory."""
    root = str(Path(paceline.__file__).parent.parent)
    return [sys.executable, "-P", "-c", f"import sys; sys.path.insert(0, {root!r}); {code}", *arguments]


def make_start_order(module: str) -> dict[str, Any]:
    """Return what a new process takes on from this one, and the module whose `run` it calls."""
    return {"module": module, "path": sys.path, "argv": sys.argv, "cwd": system.working_directory()}


class InlineLauncher:
    """A worker without a process: the function runs in the driver's own thread, where a debugger reaches it.

    The controller moves to a separate thread and talks to this worker like to any other.
    """

    def __init__(self) -> None:
        self._requests: SimpleQueue[socket.socket | None] = SimpleQueue()
        self._exits: list[ProcessExit] = []
        self._news_r, self._news_w = os.pipe()

    def launch(self, token: int, env: dict[str, str], fds: tuple[int, int, int], module: str = WORKER_MODULE) -> None:
        self._requests.put(socket.socket(fileno=os.dup(fds[0])))

    def wait_for_worker(self) -> socket.socket | None:
        """Return the next worker's socket, or None once there are no more. Blocks; called in the user's thread."""
        return self._requests.get()

    def report_exit(self, code: int) -> None:
        """Report that the function has ended. Called in the user's thread."""
        self._exits.append(ProcessExit(0, code, time.time()))
        os.write(self._news_w, b"\0")

    def kill(self, token: int) -> None:
        """Do nothing: a thread cannot be killed, it ends when its function returns."""

    def preload_ahead(self, modules: tuple[str, ...], imported: Collection[str]) -> bool:
        """Do nothing: this process imports what it needs by itself."""
        return True

    def take_exits(self) -> list[ProcessExit]:
        exits, self._exits = self._exits, []
        if exits:
            os.read(self._news_r, len(exits))
        return exits

    def watched_fds(self) -> list[int]:
        return [self._news_r]

    def pid(self, token: int) -> int:
        return os.getpid()

    def close(self) -> None:
        self._requests.put(None)
        os.close(self._news_r)
        os.close(self._news_w)


T = TypeVar("T")

# The system sends the parent-death signal when the thread that started a process ends, not the whole parent. If a
# short-lived thread of one run started a spare interpreter, its end would kill it while another run uses it.
# A daemon thread, because one of a pool would end before the user's other threads do, which may still run a fit().
_SpawnerQueue = SimpleQueue[tuple[Callable[[], Any], Future[Any]]]
_spawner_queues: dict[int, _SpawnerQueue] = {}  # By process: after a fork the queue exists, the thread does not.
_spawner_lock = threading.Lock()  # protects it


def spawn_process(command: list[str], end: socket.socket, env: dict[str, str], **options: Any) -> Popen[bytes]:
    """Start a process that inherits one end of a socket pair."""
    fd = end.fileno()
    return run_on_spawner_thread(lambda: Popen(command, pass_fds=[fd], env=env, stdin=subprocess.DEVNULL, **options))


def run_on_spawner_thread(start: Callable[[], T]) -> T:
    """Call a function on a thread that outlives the caller; return its result or raise its error."""
    if threading.current_thread() is threading.main_thread():
        return start()
    with _spawner_lock:
        if (orders := _spawner_queues.get(os.getpid())) is None:
            orders = _spawner_queues[os.getpid()] = SimpleQueue()
            threading.Thread(target=_run_spawner, args=(orders,), name="paceline-starter", daemon=True).start()
    answer: Future[T] = Future()
    orders.put((start, answer))
    return answer.result()


def _run_spawner(orders: _SpawnerQueue) -> None:
    while True:
        start, answer = orders.get()
        try:
            answer.set_result(start())
        except BaseException as error:  # noqa: BLE001 - raised in the calling thread
            answer.set_exception(error)
        # Otherwise the last started process would stay referenced until the next one.
        del start, answer
