"""Whether the cluster is still there: its head takes connections, or has not done so for a while.

Ray's own calls wait for a head that is lost, for a minute, and then end the process. So the head is looked after from
here, and what may wait for it is called from a thread that can be left behind.
"""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, TypeVar

from paceline._core.system import Condition
from paceline._engine.base import Engine, Group, Needs
from paceline._engine.messages import FromWorker, ToWorker, WorkerFailed, WorkersStopped
from paceline._engine.ray.connect import forsaken

T = TypeVar("T")

_LOOK_EVERY_S = 1.0
_WAIT_S = 0.2


class ClusterLostError(ConnectionError):
    """Nothing on the cluster can be reached any more."""


class Leavable(ThreadPoolExecutor):
    """Runs each call in a thread that the end of the process does not wait for.

    Ray's calls may wait for a head that is lost.
    """

    def submit(self, call: Callable[..., T], /, *args: Any, **kwargs: Any) -> Future[T]:
        future: Future[T] = Future()

        def run() -> None:
            if not future.set_running_or_notify_cancel():
                return
            try:
                future.set_result(call(*args, **kwargs))
            except BaseException as error:  # noqa: BLE001  raised again where the result is taken
                future.set_exception(error)

        threading.Thread(target=run, name="paceline-asking", daemon=True).start()
        return future


_leavable = Leavable()


class Presence:
    """Looks from `__init__` to `close`."""

    def __init__(self, address: str, patience_s: float) -> None:
        """`address`: of the head, `host:port`. It is taken for lost when nothing answers there for `patience_s`."""
        self.address = address
        self.lost = False
        self.answered = time.monotonic()
        """When it last did."""
        self._patience_s = patience_s
        self._closing = threading.Event()
        self._looker = threading.Thread(target=self._look, name="paceline-presence", daemon=True)
        self._looker.start()

    def raise_if_lost(self) -> None:
        if self.lost:
            raise ClusterLostError(
                f"the Ray cluster at {self.address} is gone: its head has not answered for {self._patience_s:g} s "
                "(PACELINE_CLUSTER_PATIENCE_S)\n\n"
                "hint: run the script again on a cluster that is there, with the same storage: it continues from the "
                "last checkpoint"
            )

    def asked(self, ask: Callable[[], T]) -> T:
        """What the cluster answers; `ClusterLostError` where it is lost meanwhile."""
        answer = _leavable.submit(ask)
        while True:
            try:
                return answer.result(_WAIT_S)
            except TimeoutError:
                if answer.done():
                    raise
                self.raise_if_lost()

    def let_go(self, end: Callable[[], None]) -> None:
        """End something on the cluster; on one that is lost there is nothing left to end."""
        try:
            if not self.lost:
                self.asked(end)
        except ClusterLostError:
            pass

    def close(self) -> None:
        self._closing.set()
        self._looker.join()

    def answers(self) -> bool:
        """Whether it does right now."""
        host, _, port = self.address.rpartition(":")
        try:
            socket.create_connection((host.strip("[]"), int(port)), timeout=_LOOK_EVERY_S).close()
        except OSError:
            return False
        self.answered = time.monotonic()
        return True

    def _look(self) -> None:
        while not self._closing.wait(_LOOK_EVERY_S):
            if not self.answers() and time.monotonic() - self.answered > self._patience_s:
                forsaken()
                self.lost = True
                return


class Anchored:
    """An engine on a cluster, which says so when that is gone: `wait` raises, and nothing waits for it.

    Where a worker was lost while the head does not answer, it is not told of before the head does or is known to be
    gone: all workers are then, and the cluster is the cause.
    """

    def __init__(self, engine: Engine, presence: Presence) -> None:
        self._engine = engine
        self._presence = presence
        self._held: list[FromWorker | WorkersStopped] = []
        self._doubted = 0.0
        """Since when what was heard is held back."""

    def capacity(self, needs: Needs, least: int, most: int) -> int:
        return self._presence.asked(lambda: self._engine.capacity(needs, least, most))

    def start(self, group: Group) -> None:
        self._engine.start(group)

    def send(self, rank: int, message: ToWorker) -> None:
        self._engine.send(rank, message)

    def stop(self, *, kill: bool) -> None:
        self._engine.stop(kill=kill)

    def wait(self, timeout_s: float | None) -> list[FromWorker | WorkersStopped]:
        said = self._engine.wait(timeout_s)
        self._presence.raise_if_lost()
        if not self._held:
            if not any(isinstance(each, WorkerFailed) for each in said) or self._presence.answers():
                return said
            self._doubted = time.monotonic()
        self._held += said
        if self._presence.answered < self._doubted:
            return []
        held, self._held = self._held, []
        return held

    def condition(self, rank: int) -> Condition | None:
        return self._presence.asked(lambda: self._engine.condition(rank))

    @property
    def waits(self) -> bool:
        return self._engine.waits

    def wake(self) -> None:
        self._engine.wake()

    def close(self) -> None:
        try:
            self._presence.let_go(self._engine.close)
        finally:
            self._presence.close()

    def __getattr__(self, name: str) -> Any:
        """What else it can do, for tests."""
        return getattr(self._engine, name)
