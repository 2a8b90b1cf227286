"""Workers as fresh interpreters, for frameworks that must not be forked and systems where forking is not safe.

An interpreter with its framework takes seconds to start. So once a run has lasted a while, one spare per worker is
started: it imports what workers need and waits. A restart, or the next run of this process, sends the spares their
orders and has its workers in milliseconds. A spare is used only if the environment and `sys.path` are those that it was
started with, because frameworks read them at import. None is used twice.
"""

import atexit
import contextlib
import functools
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from dataclasses import dataclass

from paceline._core import settings, system
from paceline._engine.local.launchers import WORKER_MODULE, WORKER_MODULES, ProcessExit, python_command, send_request
from paceline._engine.local.spawner_thread import run_on_spawner_thread

MAX_SPARES = 8
"""The most spares that wait at once: each holds a framework in memory."""


@dataclass(frozen=True)
class InterpreterSpec:
    """What an interpreter was started with."""

    env: tuple[tuple[str, str], ...]
    path: tuple[str, ...]
    modules: tuple[str, ...]


@dataclass(frozen=True)
class SpareInterpreter:
    """A process that waits for its order, or has received it."""

    spec: InterpreterSpec
    process: subprocess.Popen[bytes]
    connection: socket.socket
    owner: int

    @property
    def is_waiting(self) -> bool:
        return self.owner == os.getpid() and self.process.poll() is None

    def assign_work(self, fds: tuple[int, int, int], module: str) -> None:
        """Turn it into a worker."""
        told = {"module": module, "path": sys.path, "argv": sys.argv, "cwd": os.getcwd()}
        send_request(self.connection, told, fds)
        self.connection.close()

    def terminate(self) -> None:
        self.connection.close()
        if self.owner == os.getpid():
            kill_session(self.process)
            self.process.wait()


def start_interpreter(
    kind: InterpreterSpec, later: tuple[str, ...] = (), log: int = subprocess.DEVNULL
) -> SpareInterpreter:
    """Start an interpreter without waiting for it."""
    ours, theirs = socket.socketpair()
    with theirs:
        start: functools.partial[subprocess.Popen[bytes]] = functools.partial(
            subprocess.Popen,
            python_command(
                "from paceline._engine.local.spawn_entry import run_spawned_worker; run_spawned_worker()",
                str(theirs.fileno()),
                str(os.getpid()),
                json.dumps([*WORKER_MODULES, *kind.modules, *later]),
                json.dumps(kind.path),
            ),
            pass_fds=[theirs.fileno()],
            env=dict(kind.env),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
        process = run_on_spawner_thread(start)
    return SpareInterpreter(kind, process, ours, os.getpid())


def kill_session(process: subprocess.Popen[bytes]) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)


class SparePool:
    """The waiting interpreters of all runs of this process, oldest first."""

    def __init__(self) -> None:
        self._waiting: list[SpareInterpreter] = []
        self._lock = threading.Lock()  # protects `_waiting`
        atexit.register(self.close)

    def take(self, kind: InterpreterSpec) -> SpareInterpreter | None:
        with self._lock:
            self._drop_ended()
            for found in self._waiting:
                if found.spec == kind:
                    self._waiting.remove(found)
                    return found
        return None

    def refill(self, kinds: list[InterpreterSpec], later: tuple[str, ...]) -> None:
        """Keep one spare waiting for each of these; spares of other kinds are terminated when there are too many."""
        with self._lock:
            self._drop_ended()
            there = [found.spec for found in self._waiting]
            for kind in kinds[:MAX_SPARES]:
                if kind in there:
                    there.remove(kind)
                else:
                    self._waiting.append(start_interpreter(kind, later))
            needless = [found for found in self._waiting if found.spec not in kinds]
            for found in needless[: max(0, len(self._waiting) - MAX_SPARES)]:
                self._waiting.remove(found)
                found.terminate()

    def close(self) -> None:
        with self._lock:
            for found in self._waiting:
                found.terminate()
            self._waiting.clear()

    def _drop_ended(self) -> None:
        for found in [found for found in self._waiting if not found.is_waiting]:
            self._waiting.remove(found)
            found.terminate()


_spares = SparePool()


def close_spares() -> None:
    """Terminate all waiting interpreters."""
    _spares.close()


class SpawnLauncher:
    """Runs every worker in a fresh interpreter: a waiting spare, or a new one."""

    def __init__(self, preload: tuple[str, ...] = ()) -> None:
        self._preload = preload
        self._processes: dict[int, subprocess.Popen[bytes]] = {}
        self._watches: dict[int, int] = {}
        self._specs: list[InterpreterSpec] = []
        self._has_used_spares = False
        """Spares were used and should be replaced."""
        self._has_refilled = False

    def launch(self, token: int, env: dict[str, str], fds: tuple[int, int, int], module: str = WORKER_MODULE) -> None:
        kind = InterpreterSpec(tuple(sorted(env.items())), tuple(sys.path), self._preload)
        self._specs.append(kind)
        waited = _spares.take(kind)
        self._has_used_spares = self._has_used_spares or waited is not None
        fresh = waited or start_interpreter(kind, log=fds[1])
        fresh.assign_work(fds, module)
        self._processes[token] = fresh.process
        watch = system.open_exit_watch(fresh.process.pid)
        if watch is not None:
            self._watches[token] = watch

    def kill(self, token: int) -> None:
        process = self._processes.get(token)
        if process is not None:
            kill_session(process)

    def preload_ahead(self, modules: tuple[str, ...]) -> None:
        """Start spares for a restart and for the next run."""
        self._has_refilled = True
        if settings.load().prewarm:
            _spares.refill(self._specs, modules)

    def take_exits(self) -> list[ProcessExit]:
        ended = [(token, process) for token, process in self._processes.items() if process.poll() is not None]
        for token, _ in ended:
            self.kill(token)
            del self._processes[token]
            if token in self._watches:
                os.close(self._watches.pop(token))
        return [ProcessExit(token, process.returncode, time.time()) for token, process in ended]

    def watched_fds(self) -> list[int]:
        return list(self._watches.values())

    def pid(self, token: int) -> int:
        process = self._processes.get(token)
        return process.pid if process else 0

    def close(self) -> None:
        for token, process in self._processes.items():
            self.kill(token)
            process.wait()
        self.take_exits()
        if self._has_used_spares and not self._has_refilled:
            self.preload_ahead(())  # The run was short because spares were waiting; replace them for the next one.
