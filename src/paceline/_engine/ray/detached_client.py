"""The script's side of detached work: start or find it, stream its output, ask it to stop, fetch its outcome."""

from __future__ import annotations

import asyncio
import queue
import secrets
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from paceline._engine.ray.cluster_monitor import ClusterMonitor
from paceline._engine.ray.connection import import_ray
from paceline._engine.ray.detached_actor import MAX_RESTARTS, NAMESPACE, DetachedOutput, make_detached_actor
from paceline._engine.ray.nodes import parse_loss, summarize_loss

_POLL_S = 0.2
_RETRY_S = 0.5
_NAME_FREE_TIMEOUT_S = 20.0
"""How long to wait for an actor whose work is over to exit; it keeps the outcome for its followers a while."""

OutputWriter = Callable[[int, str], None]
"""Writes output: takes the stream, 1 or 2, and the text."""


class DetachedActorGoneError(ConnectionError):
    """The actor has ended and will not be restarted."""


@dataclass(frozen=True)
class DetachedLink:
    actor: Any
    token: str
    is_new: bool
    """Started by this process, not found running."""


def find_detached(name: str, token: str, presence: ClusterMonitor) -> DetachedLink | None:
    """Return the running work of this name, or None; raise `PermissionError` if the token is wrong."""
    ray = import_ray()

    def look() -> DetachedLink | None:
        try:
            actor = ray.get_actor(name, namespace=NAMESPACE)
        except ValueError:
            return None
        try:
            over = ray.get(actor.is_over.remote(token))
        except PermissionError as error:
            raise PermissionError("the token is not that of this run's controller") from error
        except ray.exceptions.ActorDiedError:
            return None
        except ray.exceptions.RayError:
            over = False  # It is being restarted.
        return None if over else DetachedLink(actor, token, is_new=False)

    return presence.call_cluster(look)


def start_detached(
    name: str, token: str, work: bytes, runtime_env: Mapping[str, Any] | None, presence: ClusterMonitor
) -> DetachedLink:
    """Return the running work of this name, or start it."""
    ray = import_ray()
    options: dict[str, Any] = {
        "name": name,
        "namespace": NAMESPACE,
        "lifetime": "detached",
        "max_restarts": MAX_RESTARTS,
        "num_cpus": 0,
    }
    if runtime_env is not None:
        options["runtime_env"] = dict(runtime_env)
    deadline = time.monotonic() + _NAME_FREE_TIMEOUT_S

    def start_actor() -> DetachedLink:
        actor = ray.remote(make_detached_actor(work)).options(**options).remote(token)
        try:
            ray.get(actor.is_over.remote(token))
        except ray.exceptions.RayError as error:
            raise DetachedActorGoneError(
                f"the controller could not be started: {summarize_loss(parse_loss(error))}"
            ) from error
        return DetachedLink(actor, token, is_new=True)

    while True:
        link = find_detached(name, token, presence)
        if link is not None:
            return link
        try:
            return presence.call_cluster(start_actor)
        except ValueError as error:
            # The name is taken: by another script just now, or by an actor that is about to exit.
            if time.monotonic() > deadline:
                raise DetachedActorGoneError(
                    f"the controller named {name!r} neither works nor ends: {error}"
                ) from error
            time.sleep(_POLL_S)


class DetachedFollower:
    """Follows one detached work until it is over."""

    def __init__(
        self, link: DetachedLink, write: OutputWriter, say: Callable[[str], None], presence: ClusterMonitor
    ) -> None:
        self._link = link
        self._write = write
        self._notify_user = say
        self._cluster_monitor = presence
        self._ray = import_ray()
        self._follower_id = secrets.token_hex(8)
        self._inbox: queue.SimpleQueue[DetachedOutput | Exception | bool] = queue.SimpleQueue()
        self._incarnation, self._next_number = "", 0
        self._stop_requests: list[bool] = []

    def ask_to_stop(self, *, now: bool) -> None:
        """May be called by signal handlers and other threads."""
        self._inbox.put(now)

    def wait_for_outcome(self) -> bytes:
        """Write the work's output as it arrives, and return what the work returned."""
        self._start_reading()
        lost = False
        while True:
            news = self._next_item()
            if news is None:
                self._cluster_monitor.raise_if_lost()
            elif isinstance(news, bool):
                self._stop_requests.append(news)
                self._send_stop(news)
            elif isinstance(news, Exception):
                self._raise_if_final(news)
                if not lost:
                    self._notify_user("the controller was lost, and is being started again elsewhere: waiting for it")
                lost = True
                time.sleep(_RETRY_S)
                self._start_reading()
            else:
                if lost:
                    for now in self._stop_requests:
                        self._send_stop(now)
                lost = False
                self._incarnation, self._next_number = news.incarnation, news.next_number
                for stream, text in news.pieces:
                    self._write(stream, text)
                if news.is_over:
                    break
        return self._cluster_monitor.call_cluster(self._fetch_outcome)

    def _next_item(self) -> DetachedOutput | Exception | bool | None:
        try:
            return self._inbox.get(timeout=_RETRY_S)
        except queue.Empty:
            return None

    def leave(self) -> None:
        """Stop following; the work continues."""
        self._link.actor.leave.remote(self._link.token, self._follower_id)

    def _start_reading(self) -> None:
        threading.Thread(target=lambda: asyncio.run(self._read_stream()), name="paceline-follow", daemon=True).start()

    async def _read_stream(self) -> None:
        # Asynchronous, because such waits are dropped when the process exits. Otherwise, if the cluster is lost, Ray
        # would then look for another one to ask.
        follow = self._link.actor.follow.options(num_returns="streaming")
        try:
            async for ref in follow.remote(self._link.token, self._follower_id, self._incarnation, self._next_number):
                self._inbox.put(msgspec.json.decode(await ref, type=DetachedOutput))
        except (self._ray.exceptions.RayError, PermissionError) as error:
            self._inbox.put(error)

    def _send_stop(self, now: bool) -> None:
        self._link.actor.stop.remote(self._link.token, now)

    def _raise_if_final(self, problem: Exception) -> None:
        """Raise the error, unless the actor will be restarted."""
        if isinstance(problem, PermissionError):
            raise PermissionError("the token is not that of this run's controller") from problem
        if isinstance(problem, self._ray.exceptions.ActorDiedError):
            raise DetachedActorGoneError("the controller has ended, and is not started again") from problem
        if isinstance(problem, self._ray.exceptions.RayTaskError):
            raise problem
        self._cluster_monitor.raise_if_lost()

    def _fetch_outcome(self) -> bytes:
        outcome: bytes = self._ray.get(self._link.actor.outcome.remote(self._link.token))
        self.leave()
        return outcome
