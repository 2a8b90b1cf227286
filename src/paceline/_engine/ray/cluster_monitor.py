"""Detects the loss of the cluster: its head has not accepted connections for a while.

Ray's own calls wait a minute for a lost head and then end the process. So this module watches the head itself, and
makes calls that may wait for it on threads that can be abandoned.
"""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, TypeVar

from paceline._core.system import ProcessStatus
from paceline._engine.base import Engine, WorkerResources
from paceline._engine.messages import FromWorker, WorkerFailed, WorkersStopped
from paceline._engine.ray.connection import detach_from_lost_cluster

T = TypeVar("T")

NOTICE_AFTER_S = 10.0
_CHECK_INTERVAL_S = 1.0
_POLL_S = 0.2


class ClusterLostError(ConnectionError):
    """Nothing on the cluster can be reached any more."""


class DaemonThreadExecutor(ThreadPoolExecutor):
    """Runs each call in a daemon thread: a call of Ray may wait for a lost head, and must not delay the exit."""

    def submit(self, call: Callable[..., T], /, *args: Any, **kwargs: Any) -> Future[T]:
        future: Future[T] = Future()

        def run() -> None:
            if not future.set_running_or_notify_cancel():
                return
            try:
                future.set_result(call(*args, **kwargs))
            except BaseException as error:  # noqa: BLE001 - raised again where the result is read
                future.set_exception(error)

        threading.Thread(target=run, name="paceline-asking", daemon=True).start()
        return future


_executor = DaemonThreadExecutor()


class ClusterMonitor:
    """Watches the head from construction until `close`."""

    def __init__(self, address: str, patience_s: float, say: Callable[[str], None] = lambda _: None) -> None:
        """`address` is the head's `host:port`. The head counts as lost when nothing answers there for `patience_s`.

        `say` gets a message when the head has not answered for a while, and another when it answers again.
        """
        self.address = address
        self.is_lost = False
        self.last_answer_at = time.monotonic()
        self._patience_s = patience_s
        self._notify_user = say
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._watch_head, name="paceline-presence", daemon=True)
        self._thread.start()

    def raise_if_lost(self) -> None:
        if self.is_lost:
            raise ClusterLostError(
                f"the Ray cluster at {self.address} is lost: its head has not answered for {self._patience_s:g} s "
                "(PACELINE_CLUSTER_PATIENCE_S)\n\n"
                "hint: run the script again on a running cluster, with the same storage, to continue from the last "
                "checkpoint"
            )

    def call_cluster(self, call: Callable[[], T]) -> T:
        """Return the cluster's answer; raise `ClusterLostError` if the cluster is lost meanwhile."""
        future = _executor.submit(call)
        while True:
            try:
                return future.result(_POLL_S)
            except TimeoutError:
                if future.done():
                    raise
                self.raise_if_lost()

    def end_unless_lost(self, end: Callable[[], None]) -> None:
        """End something on the cluster; if the cluster is lost, there is nothing left to end."""
        try:
            if not self.is_lost:
                self.call_cluster(end)
        except ClusterLostError:
            pass

    def close(self) -> None:
        self._closing.set()
        self._thread.join()

    def check_reachable(self) -> bool:
        host, _, port = self.address.rpartition(":")
        try:
            socket.create_connection((host.strip("[]"), int(port)), timeout=_CHECK_INTERVAL_S).close()
        except OSError:
            return False
        self.last_answer_at = time.monotonic()
        return True

    def _watch_head(self) -> None:
        silent_since: float | None = None
        while not self._closing.wait(_CHECK_INTERVAL_S):
            last_answer_at = self.last_answer_at
            if self.check_reachable():
                if silent_since is not None:
                    silence_s = time.monotonic() - silent_since
                    self._notify_user(
                        f"the head of the Ray cluster at {self.address} answers again, after {silence_s:.0f} s"
                    )
                silent_since = None
                continue
            silence_s = time.monotonic() - last_answer_at
            if silence_s > self._patience_s:
                detach_from_lost_cluster()
                self.is_lost = True
                return
            if silent_since is None and silence_s > NOTICE_AFTER_S:
                silent_since = last_answer_at
                self._notify_user(
                    f"no answer from the head of the Ray cluster at {self.address} for {silence_s:.0f} s: the workers "
                    f"train on, and the run fails after {self._patience_s:g} s (PACELINE_CLUSTER_PATIENCE_S)"
                )


class MonitoredEngine:
    """An engine on a cluster that detects the loss of the cluster: `wait` raises, and nothing blocks on it.

    If a worker is lost while the head does not answer, the failure is withheld until the head answers or is known to be
    lost: in the latter case all workers are lost, and the cluster is the cause.
    """

    def __init__(self, engine: Engine, cluster_monitor: ClusterMonitor) -> None:
        self._engine = engine
        self._cluster_monitor = cluster_monitor
        self._withheld: list[FromWorker | WorkersStopped] = []
        self._withheld_since = 0.0

    def capacity(self, needs: WorkerResources, least: int, most: int) -> int:
        return self._cluster_monitor.call_cluster(lambda: self._engine.capacity(needs, least, most))

    def wait(self, timeout_s: float | None) -> list[FromWorker | WorkersStopped]:
        messages = self._engine.wait(timeout_s)
        self._cluster_monitor.raise_if_lost()
        if not self._withheld:
            if not any(isinstance(each, WorkerFailed) for each in messages) or self._cluster_monitor.check_reachable():
                return messages
            self._withheld_since = time.monotonic()
        self._withheld += messages
        if self._cluster_monitor.last_answer_at < self._withheld_since:
            return []
        messages, self._withheld = self._withheld, []
        return messages

    def condition(self, rank: int) -> ProcessStatus | None:
        return self._cluster_monitor.call_cluster(lambda: self._engine.condition(rank))

    def close(self) -> None:
        try:
            self._cluster_monitor.end_unless_lost(self._engine.close)
        finally:
            self._cluster_monitor.close()

    def __getattr__(self, name: str) -> Any:
        """Forward what neither waits for the cluster nor hears of its loss."""
        return getattr(self._engine, name)
