"""Work that outlives the script that started it: the detached actor that runs it, and the script's side.

The actor runs one callable in a thread, streams its output to any number of followers, who may also request a stop, and
exits once they have fetched the return value. When its process or node is lost, Ray restarts the actor elsewhere and
the callable runs again: it must find out by itself how far it got. The callable is part of the actor's class, which Ray
keeps for as long as it may restart the actor; arguments are owned by the script and would be lost with it.
"""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import io
import pickle
import queue
import secrets
import threading
import time
import traceback
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from paceline._engine.messages import encode_message
from paceline._engine.ray.cluster_monitor import ClusterMonitor
from paceline._engine.ray.connection import import_ray
from paceline._engine.ray.nodes import summarize_error

NAMESPACE = "paceline"
MAX_RESTARTS = 100
MAX_WORK_BYTES = 64 << 20
"""Of the pickled callable: Ray rejects classes that are much larger."""
_MAX_KEPT_CHARS = 4 << 20
"""Characters of output kept for late followers."""
_LINGER_S = 5.0
"""How long to keep the outcome for followers that do not fetch it: they are gone or unreachable."""
_POLL_S = 0.2
_RETRY_S = 0.5
_NAME_FREE_TIMEOUT_S = 20.0
"""How long to wait for an actor whose work is over to exit; it keeps the outcome for its followers a while."""

OutputWriter = Callable[[int, str], None]
"""Writes output: takes the stream, 1 or 2, and the text."""


class DetachedOutput(msgspec.Struct, frozen=True):
    """New output: pieces of text, each with its stream, 1 (stdout) or 2 (stderr)."""

    incarnation: str
    """Of the actor; numbering restarts with each one."""
    next_number: int
    pieces: tuple[tuple[int, str], ...] = ()
    is_over: bool = False


class FollowerHub:
    """The followers, as the work sees them: it publishes output to them and receives their stop requests."""

    def __init__(self, actor_id: str, is_restarted: bool) -> None:
        self.actor_id = actor_id
        """The same in every incarnation of the actor."""
        self.is_restarted = is_restarted
        """An earlier incarnation of the actor was lost."""
        self.incarnation = secrets.token_hex(4)
        self.is_over = False
        self._pieces: deque[tuple[int, str]] = deque()
        self._num_dropped = 0
        self._num_chars = 0
        self._lock = threading.Lock()
        self._waiting: set[Callable[[], object]] = set()
        self._pending_stops: list[bool] = []
        self._stop_handler: Callable[[bool], None] | None = None

    def publish(self, stream: int, text: str) -> None:
        with self._lock:
            self._pieces.append((stream, text))
            self._num_chars += len(text)
            while self._num_chars > _MAX_KEPT_CHARS and len(self._pieces) > 1:
                self._num_chars -= len(self._pieces.popleft()[1])
                self._num_dropped += 1
        self._wake_all()

    def set_stop_handler(self, handler: Callable[[bool], None] | None) -> None:
        """Forward stop requests, including earlier ones: at the next good moment, or immediately (True)."""
        with self._lock:
            self._stop_handler = handler
        while handler is not None and self._pending_stops:
            handler(self._pending_stops.pop(0))

    # Called by the actor

    def request_stop(self, now: bool) -> None:
        with self._lock:
            handler = self._stop_handler
            if handler is None:
                self._pending_stops.append(now)
        if handler is not None:
            handler(now)

    def finish(self) -> None:
        self.is_over = True
        self._wake_all()

    def read_since(self, number: int) -> DetachedOutput:
        with self._lock:
            first = max(0, number - self._num_dropped)
            pieces = tuple(self._pieces)[first:]
            # `is_over` is read after the pieces: read before, it could be true with some of them missing.
            return DetachedOutput(self.incarnation, self._num_dropped + len(self._pieces), pieces, self.is_over)

    @contextlib.contextmanager
    def wake_on_output(self, wake: Callable[[], object]) -> Iterator[None]:
        with self._lock:
            self._waiting.add(wake)
        try:
            yield
        finally:
            with self._lock:
                self._waiting.discard(wake)

    def _wake_all(self) -> None:
        with self._lock:
            waiting = list(self._waiting)
        for wake in waiting:
            wake()


class _FollowerStream(io.TextIOBase):
    """Standard output or error of the work."""

    def __init__(self, followers: FollowerHub, number: int) -> None:
        self._followers = followers
        self._number = number

    def writable(self) -> bool:
        return True

    def write(self, text: str) -> int:
        if text:
            self._followers.publish(self._number, text)
        return len(text)


class DetachedActor:
    """The actor. Every call must present its token."""

    work: bytes
    """The pickled callable: it takes the `FollowerHub` and returns bytes. Each work gets its own subclass."""

    def __init__(self, token: str) -> None:
        self._token = token
        runtime = import_ray().get_runtime_context()
        self._handle = runtime.current_actor
        self._followers = FollowerHub(runtime.get_actor_id(), runtime.was_current_actor_reconstructed)
        self._outcome: bytes | None = None
        self._problem = ""
        self._present_followers: set[str] = set()
        self._departure = threading.Condition()
        # Not in a method: after a restart there may be nobody to call one.
        threading.Thread(target=self._run_work, name="paceline-work", daemon=True).start()

    async def is_over(self, token: str) -> bool:
        self._check_token(token)
        return self._followers.is_over

    async def follow(self, token: str, follower_id: str, incarnation: str, number: int) -> AsyncIterator[bytes]:
        """Stream all output from a position in one incarnation; in another incarnation, from the start."""
        self._check_token(token)
        with self._departure:
            self._present_followers.add(follower_id)
        loop = asyncio.get_running_loop()
        has_output = asyncio.Event()
        number = number if incarnation == self._followers.incarnation else 0
        first = True
        with self._followers.wake_on_output(lambda: loop.call_soon_threadsafe(has_output.set)):
            while True:
                has_output.clear()
                output = self._followers.read_since(number)
                number = output.next_number
                if first or output.pieces or output.is_over:
                    yield encode_message(output)
                first = False
                if output.is_over:
                    return
                await has_output.wait()

    async def stop(self, token: str, now: bool) -> None:
        self._check_token(token)
        self._followers.request_stop(now)

    async def outcome(self, token: str) -> bytes:
        """Return what the work returned, once it is over."""
        self._check_token(token)
        if self._outcome is None:
            raise RuntimeError(self._problem)
        return self._outcome

    async def leave(self, token: str, follower_id: str) -> None:
        """Record that this follower needs nothing more."""
        self._check_token(token)
        with self._departure:
            self._present_followers.discard(follower_id)
            self._departure.notify_all()

    def _check_token(self, token: str) -> None:
        if not hmac.compare_digest(token, self._token):
            raise PermissionError("wrong token for this run's controller")

    def _run_work(self) -> None:
        followers = self._followers
        # This process does nothing else: anything printed in it is meant for the followers.
        with (
            contextlib.redirect_stdout(_FollowerStream(followers, 1)),
            contextlib.redirect_stderr(_FollowerStream(followers, 2)),
        ):
            try:
                self._outcome = pickle.loads(type(self).work)(followers)  # noqa: S301 - as Ray does for every actor
            except BaseException:  # noqa: BLE001 - forwarded to the followers
                self._problem = traceback.format_exc()
        followers.finish()
        with self._departure:
            self._departure.wait_for(lambda: not self._present_followers, timeout=_LINGER_S)
        import_ray().kill(self._handle)


class DetachedActorGoneError(ConnectionError):
    """The actor has ended and will not be restarted."""


@dataclass(frozen=True)
class DetachedLink:
    actor: Any
    token: str
    is_new: bool
    """Started by this process, not found running."""


def find_detached(name: str, token: str, cluster_monitor: ClusterMonitor) -> DetachedLink | None:
    """Return the running work of this name, or None; raise `PermissionError` if the token is wrong."""
    ray = import_ray()

    def find_actor() -> DetachedLink | None:
        try:
            actor = ray.get_actor(name, namespace=NAMESPACE)
        except ValueError:
            return None
        try:
            over = ray.get(actor.is_over.remote(token))
        except PermissionError as error:
            raise PermissionError("wrong token for this run's controller") from error
        except ray.exceptions.ActorDiedError:
            return None
        except ray.exceptions.RayError:
            over = False  # It is being restarted.
        return None if over else DetachedLink(actor, token, is_new=False)

    return cluster_monitor.call_cluster(find_actor)


def start_detached(
    name: str, token: str, work: bytes, runtime_env: Mapping[str, Any] | None, cluster_monitor: ClusterMonitor
) -> DetachedLink:
    """Return the running work of this name, or start it."""
    ray = import_ray()
    options: dict[str, Any] = {"name": name, "namespace": NAMESPACE, "lifetime": "detached"}
    options |= {"max_restarts": MAX_RESTARTS, "num_cpus": 0}
    if runtime_env is not None:
        options["runtime_env"] = dict(runtime_env)
    deadline = time.monotonic() + _NAME_FREE_TIMEOUT_S

    def start_actor() -> DetachedLink:
        actor_class = type("DetachedActor", (DetachedActor,), {"work": work, "__module__": "__main__"})
        actor = ray.remote(actor_class).options(**options).remote(token)
        try:
            ray.get(actor.is_over.remote(token))
        except ray.exceptions.RayError as error:
            raise DetachedActorGoneError(f"cannot start the controller: {summarize_error(error)}") from error
        return DetachedLink(actor, token, is_new=True)

    while True:
        link = find_detached(name, token, cluster_monitor)
        if link is not None:
            return link
        try:
            return cluster_monitor.call_cluster(start_actor)
        except ValueError as error:
            # The name is taken: by another script just now, or by an actor that is about to exit.
            if time.monotonic() > deadline:
                raise DetachedActorGoneError(f"the controller {name!r} is unresponsive: {error}") from error
            time.sleep(_POLL_S)


class DetachedFollower:
    def __init__(
        self, link: DetachedLink, write: OutputWriter, say: Callable[[str], None], cluster_monitor: ClusterMonitor
    ) -> None:
        self._link = link
        self._write = write
        self._notify_user = say
        self._cluster_monitor = cluster_monitor
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
            try:
                item = self._inbox.get(timeout=_RETRY_S)
            except queue.Empty:
                self._cluster_monitor.raise_if_lost()
                continue
            if isinstance(item, bool):
                self._stop_requests.append(item)
                self._send_stop(item)
            elif isinstance(item, Exception):
                self._raise_if_final(item)
                if not lost:
                    self._notify_user("lost the controller; waiting for it to restart elsewhere")
                lost = True
                time.sleep(_RETRY_S)
                self._start_reading()
            else:
                if lost:
                    for now in self._stop_requests:
                        self._send_stop(now)
                lost = False
                self._incarnation, self._next_number = item.incarnation, item.next_number
                for stream, text in item.pieces:
                    self._write(stream, text)
                if item.is_over:
                    break
        return self._cluster_monitor.call_cluster(self._fetch_outcome)

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
            raise PermissionError("wrong token for this run's controller") from problem
        if isinstance(problem, self._ray.exceptions.ActorDiedError):
            raise DetachedActorGoneError("the controller has ended and will not restart") from problem
        if isinstance(problem, self._ray.exceptions.RayTaskError):
            raise problem
        self._cluster_monitor.raise_if_lost()

    def _fetch_outcome(self) -> bytes:
        outcome: bytes = self._ray.get(self._link.actor.outcome.remote(self._link.token))
        self.leave()
        return outcome
