"""The interface of an engine: it starts workers, carries messages and stops workers. It makes no decisions."""

import socket
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from paceline._core.system import ProcessStatus
from paceline._engine.messages import DataProcessSampled, FromWorker, ToWorker, WorkerInit, WorkersStopped


@dataclass(frozen=True)
class WorkerSpec:
    begin: WorkerInit
    log: Path
    env: dict[str, str] = field(default_factory=dict)
    """Variables to set in this worker, on top of the driver's environment."""


@dataclass(frozen=True)
class WorkerGroupSpec:
    """The workers of one attempt. `job` is the pickled (function, configuration, backend) that each one runs."""

    attempt: int
    workers: tuple[WorkerSpec, ...]
    job: bytes
    preload: tuple[str, ...] = ()
    """Modules to import before the workers start."""
    preload_later: tuple[str, ...] = ()
    """Modules that take seconds to import: preloaded only for a restart or the next run."""
    start_method: str = "fork"


@dataclass(frozen=True)
class WorkerResources:
    """What one worker requests."""

    num_cpus: float = 1.0
    num_gpus: float = 0.0


class DataInspector(Protocol):
    """Says what the processes that produce the rows of a run are doing."""

    def request_samples(self) -> int:
        """Ask all that are at work for their stacks, without waiting; return the number of the request."""

    def read_samples(self) -> Sequence[DataProcessSampled]:
        """Return the last answer of each process that is at work, which may be that there was none."""


class Engine(Protocol):
    def capacity(self, needs: WorkerResources, least: int, most: int) -> int:
        """Return how many workers fit now, running ones included, up to `most`.

        A machine that can hold `least` workers by sharing cores among them counts as having room for `least`.
        """

    def start(self, group: WorkerGroupSpec) -> None:
        """Begin to start the workers; `wait` reports what happens to them."""

    def send(self, rank: int, message: ToWorker) -> None:
        """Deliver a message, in order. A message to a worker that is gone is dropped."""

    def stop(self, *, kill: bool) -> None:
        """Stop the workers: let those that have returned exit, or kill all of them now. May be called again."""

    def wait(self, timeout_s: float | None) -> list[FromWorker | WorkersStopped]:
        """Return what happened, in order for each worker; empty after the timeout, or when woken.

        `WorkersStopped` comes once per `start`, after the last message of the last worker.
        """

    def condition(self, rank: int) -> ProcessStatus | None:
        """Return what the system knows about a worker's process, or None if it does not say."""

    @property
    def waits(self) -> bool:
        """Whether the engine waits for cluster capacity: no worker has started yet, so silence is not a hang."""

    def wake(self) -> None:
        """Make `wait` return. The only method that other threads and signal handlers may call."""

    def close(self) -> None: ...


class WakeSocket:
    """Wakes a thread that waits in a selector. `wake` may be called from any thread, also after `close`."""

    def __init__(self) -> None:
        self.receiver, self._sender = socket.socketpair()
        self.receiver.setblocking(False)
        self._sender.setblocking(False)
        self._is_closed = False

    def wake(self) -> None:
        try:
            self._sender.send(b"\0")
        except BlockingIOError:
            pass  # The socket is already full of wakes.
        except OSError:
            if not self._is_closed:
                raise

    def drain(self) -> None:
        try:
            while self.receiver.recv(4096):
                pass
        except BlockingIOError:
            pass

    def close(self) -> None:
        self._is_closed = True
        self.receiver.close()
        self._sender.close()
