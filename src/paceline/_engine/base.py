"""What an engine does: it starts workers, carries messages, ends workers. It decides nothing."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from paceline._core.system import Condition
from paceline._engine.messages import Begin, FromWorker, ToWorker, WorkersStopped


@dataclass(frozen=True)
class WorkerSpec:
    begin: Begin
    log: Path
    env: dict[str, str] = field(default_factory=dict)
    """Variables to set in this worker, on top of the driver's own."""


@dataclass(frozen=True)
class Group:
    """The workers of one attempt. `job` is the pickled (function, configuration, backend) that each runs."""

    attempt: int
    workers: tuple[WorkerSpec, ...]
    job: bytes
    preload: tuple[str, ...] = ()
    """Modules that the workers should find imported."""
    preload_later: tuple[str, ...] = ()
    """Those that are worth it only for a restart or a next run: they take seconds."""
    start_method: str = "fork"


@dataclass(frozen=True)
class Needs:
    """What one worker asks for."""

    num_cpus: float = 1.0
    num_gpus: float = 0.0


class Engine(Protocol):
    def capacity(self, needs: Needs, least: int, most: int) -> int:
        """How many workers there is room for now, those at work included; looked at only up to `most`.

        A machine that could take `least` workers one over the other, on shared cores, has room for them.
        """
        ...

    def start(self, group: Group) -> None:
        """Begin to start the workers; what becomes of them is told by `wait`."""
        ...

    def send(self, rank: int, message: ToWorker) -> None:
        """Pass a message on, in order; one to a worker that is gone is dropped."""
        ...

    def stop(self, *, kill: bool) -> None:
        """End the workers: by themselves if they have returned, or at once. May be called again."""
        ...

    def wait(self, timeout_s: float | None) -> list[FromWorker | WorkersStopped]:
        """What happened, in the order of each worker; empty after the time, or when woken.

        `WorkersStopped` comes once for each `start`, after the last message of its last worker.
        """
        ...

    def condition(self, rank: int) -> Condition | None:
        """What the system knows of a worker's process; None where it does not say."""
        ...

    @property
    def waits(self) -> bool:
        """For places on a cluster: no worker has begun, and none is silent."""
        ...

    def wake(self) -> None:
        """Let `wait` return. The only method that other threads and signal handlers may call."""
        ...

    def close(self) -> None: ...
