"""Workers that are fresh interpreters, for frameworks that must not be forked and systems where a fork is not safe.

An interpreter with its framework takes seconds to come up. So once a run has lasted a while, as many are started as it
has workers: they import what workers need and wait. A restart, or the next run of this process, hands them its order
and has its workers in milliseconds. One is used only where environment and `sys.path` are those that it was started
with: frameworks read them when they are imported. None is ever used twice.
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
from paceline._engine.local.lasting import from_lasting_thread
from paceline._engine.local.launch import WORKER, WORKER_MODULES, Exit, python, send

MAX_SPARES = 8
"""How many wait at most: each has a framework in memory."""


@dataclass(frozen=True)
class Kind:
    """What an interpreter was started with."""

    env: tuple[tuple[str, str], ...]
    path: tuple[str, ...]
    modules: tuple[str, ...]


@dataclass(frozen=True)
class Interpreter:
    """A process that waits for its order, or has got it."""

    kind: Kind
    process: subprocess.Popen[bytes]
    line: socket.socket
    owner: int

    @property
    def waits(self) -> bool:
        return self.owner == os.getpid() and self.process.poll() is None

    def order(self, fds: tuple[int, int, int], module: str) -> None:
        """Have it become a worker."""
        told = {"module": module, "path": sys.path, "argv": sys.argv, "cwd": os.getcwd()}
        send(self.line, told, fds)
        self.line.close()

    def end(self) -> None:
        self.line.close()
        if self.owner == os.getpid():
            kill_session(self.process)
            self.process.wait()


def interpreter(kind: Kind, later: tuple[str, ...] = (), log: int = subprocess.DEVNULL) -> Interpreter:
    """Start one; nobody waits for it."""
    ours, theirs = socket.socketpair()
    with theirs:
        start: functools.partial[subprocess.Popen[bytes]] = functools.partial(
            subprocess.Popen,
            python(
                "from paceline._engine.local.entry import spawned; spawned()",
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
        process = from_lasting_thread(start)
    return Interpreter(kind, process, ours, os.getpid())


def kill_session(process: subprocess.Popen[bytes]) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)


class Spares:
    """The interpreters that wait, of all runs of this process, the oldest first."""

    def __init__(self) -> None:
        self._waiting: list[Interpreter] = []
        self._lock = threading.Lock()  # protects the one above
        atexit.register(self.close)

    def take(self, kind: Kind) -> Interpreter | None:
        with self._lock:
            self._forget_ended()
            for found in self._waiting:
                if found.kind == kind:
                    self._waiting.remove(found)
                    return found
        return None

    def keep(self, kinds: list[Kind], later: tuple[str, ...]) -> None:
        """Have one waiting for each of these; those of other kinds give way where there are too many."""
        with self._lock:
            self._forget_ended()
            there = [found.kind for found in self._waiting]
            for kind in kinds[:MAX_SPARES]:
                if kind in there:
                    there.remove(kind)
                else:
                    self._waiting.append(interpreter(kind, later))
            needless = [found for found in self._waiting if found.kind not in kinds]
            for found in needless[: max(0, len(self._waiting) - MAX_SPARES)]:
                self._waiting.remove(found)
                found.end()

    def close(self) -> None:
        with self._lock:
            for found in self._waiting:
                found.end()
            self._waiting.clear()

    def _forget_ended(self) -> None:
        for found in [found for found in self._waiting if not found.waits]:
            self._waiting.remove(found)
            found.end()


_spares = Spares()


def end_all() -> None:
    """End all that wait."""
    _spares.close()


class SpawnLauncher:
    """Has a fresh interpreter for every worker: one that waits already, or a new one."""

    def __init__(self, preload: tuple[str, ...] = ()) -> None:
        self._preload = preload
        self._processes: dict[int, subprocess.Popen[bytes]] = {}
        self._watches: dict[int, int] = {}
        self._kinds: list[Kind] = []
        self._has_taken = False
        """Some were waiting, and others should in their place."""
        self._has_ripened = False

    def launch(self, token: int, env: dict[str, str], fds: tuple[int, int, int], module: str = WORKER) -> None:
        kind = Kind(tuple(sorted(env.items())), tuple(sys.path), self._preload)
        self._kinds.append(kind)
        waited = _spares.take(kind)
        self._has_taken = self._has_taken or waited is not None
        fresh = waited or interpreter(kind, log=fds[1])
        fresh.order(fds, module)
        self._processes[token] = fresh.process
        watch = system.exit_watch(fresh.process.pid)
        if watch is not None:
            self._watches[token] = watch

    def kill(self, token: int) -> None:
        process = self._processes.get(token)
        if process is not None:
            kill_session(process)

    def ripen(self, modules: tuple[str, ...]) -> None:
        """Have interpreters waiting for a restart and for the next run."""
        self._has_ripened = True
        if settings.load().prewarm:
            _spares.keep(self._kinds, modules)

    def exits(self) -> list[Exit]:
        ended = [(token, process) for token, process in self._processes.items() if process.poll() is not None]
        for token, _ in ended:
            self.kill(token)
            del self._processes[token]
            if token in self._watches:
                os.close(self._watches.pop(token))
        return [Exit(token, process.returncode, time.time()) for token, process in ended]

    def watched(self) -> list[int]:
        return list(self._watches.values())

    def pid(self, token: int) -> int:
        process = self._processes.get(token)
        return process.pid if process else 0

    def close(self) -> None:
        for token, process in self._processes.items():
            self.kill(token)
            process.wait()
        self.exits()
        if self._has_taken and not self._has_ripened:
            self.ripen(())  # The run was short, for it found them waiting: so should the next.
