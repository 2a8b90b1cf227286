"""Workers as fresh interpreters, for frameworks that must not be forked and systems where forking is not safe.

An interpreter with its framework takes seconds to start. So once a run has lasted a while, it starts one spare per
worker, which imports what workers need and waits for the order of a restart or of the next run. A spare is used once,
and only with the environment and `sys.path` that it was started with, because frameworks read them at import.
"""

import atexit
import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Collection
from dataclasses import dataclass

from paceline._core import settings, system
from paceline._engine.local import launchers
from paceline._engine.local.zygote_channel import Channel

MAX_SPARES = 8
"""The most spares that wait at once: each holds a framework in memory."""


@dataclass(frozen=True)
class InterpreterSpec:
    env: tuple[tuple[str, str], ...]
    path: tuple[str, ...]
    modules: tuple[str, ...]


@dataclass(frozen=True)
class SpareInterpreter:
    """A process that waits for its order, or has received it."""

    spec: InterpreterSpec
    process: subprocess.Popen[bytes]
    channel: Channel
    owner: int

    @property
    def is_waiting(self) -> bool:
        return self.owner == os.getpid() and self.process.poll() is None

    def assign_work(self, fds: tuple[int, int, int], module: str) -> None:
        """Turn it into a worker."""
        self.channel.send(launchers.make_start_order(module), fds)
        self.channel.close()

    def terminate(self) -> None:
        self.channel.close()
        if self.owner == os.getpid():
            kill_session(self.process)
            self.process.wait()


def start_interpreter(
    spec: InterpreterSpec, later: tuple[str, ...] = (), log: int = subprocess.DEVNULL
) -> SpareInterpreter:
    """Start an interpreter without waiting for it."""
    ours, theirs = socket.socketpair()
    command = launchers.python_command(
        "from paceline._engine.local.spawn_entry import run_spawned_worker; run_spawned_worker()",
        str(theirs.fileno()),
        str(os.getpid()),
        json.dumps([*launchers.WORKER_MODULES, *spec.modules, *later]),
        json.dumps(spec.path),
    )
    with theirs:
        process = launchers.spawn_process(
            command, theirs, dict(spec.env), stdout=log, stderr=log, start_new_session=True
        )
    return SpareInterpreter(spec, process, Channel(ours), os.getpid())


def kill_session(process: subprocess.Popen[bytes]) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)


class SparePool:
    """The waiting interpreters of all runs of this process, oldest first."""

    def __init__(self) -> None:
        self._waiting: list[SpareInterpreter] = []
        self._lock = threading.Lock()  # protects `_waiting`
        atexit.register(self.close)

    def take(self, spec: InterpreterSpec) -> SpareInterpreter | None:
        with self._lock:
            self._drop_ended()
            for spare in self._waiting:
                if spare.spec == spec:
                    self._waiting.remove(spare)
                    return spare
        return None

    def refill(self, specs: list[InterpreterSpec], later: tuple[str, ...]) -> None:
        """Keep one spare waiting for each of these; spares of other kinds are terminated when there are too many."""
        with self._lock:
            self._drop_ended()
            waiting_specs = [spare.spec for spare in self._waiting]
            for spec in specs[:MAX_SPARES]:
                if spec in waiting_specs:
                    waiting_specs.remove(spec)
                else:
                    self._waiting.append(start_interpreter(spec, later))
            unneeded = [spare for spare in self._waiting if spare.spec not in specs]
            for spare in unneeded[: max(0, len(self._waiting) - MAX_SPARES)]:
                self._waiting.remove(spare)
                spare.terminate()

    def close(self) -> None:
        with self._lock:
            for spare in self._waiting:
                spare.terminate()
            self._waiting.clear()

    def _drop_ended(self) -> None:
        for spare in [spare for spare in self._waiting if not spare.is_waiting]:
            self._waiting.remove(spare)
            spare.terminate()


_spares = SparePool()


class SpawnLauncher:
    """Runs every worker in a fresh interpreter: a waiting spare, or a new one."""

    def __init__(self, preload: tuple[str, ...] = ()) -> None:
        self._preload = preload
        self._processes: dict[int, subprocess.Popen[bytes]] = {}
        self._watches: dict[int, int] = {}
        self._specs: list[InterpreterSpec] = []
        self._has_used_spares = False
        self._has_refilled = False

    def launch(
        self, token: int, env: dict[str, str], fds: tuple[int, int, int], module: str = launchers.WORKER_MODULE
    ) -> None:
        spec = InterpreterSpec(tuple(sorted(env.items())), tuple(sys.path), self._preload)
        self._specs.append(spec)
        spare = _spares.take(spec)
        self._has_used_spares = self._has_used_spares or spare is not None
        interpreter = spare or start_interpreter(spec, log=fds[1])
        interpreter.assign_work(fds, module)
        self._processes[token] = interpreter.process
        watch = system.open_exit_watch(interpreter.process.pid)
        if watch is not None:
            self._watches[token] = watch

    def kill(self, token: int) -> None:
        process = self._processes.get(token)
        if process is not None:
            kill_session(process)

    def preload_ahead(self, modules: tuple[str, ...], imported: Collection[str] = ()) -> bool:
        """Start spares for a restart and for the next run."""
        self._has_refilled = True
        if settings.load().prewarm:
            _spares.refill(self._specs, modules)
        return True

    def take_exits(self) -> list[launchers.ProcessExit]:
        ended = [(token, process) for token, process in self._processes.items() if process.poll() is not None]
        for token, _ in ended:
            self.kill(token)
            del self._processes[token]
            if token in self._watches:
                os.close(self._watches.pop(token))
        return [launchers.ProcessExit(token, process.returncode, time.time()) for token, process in ended]

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
