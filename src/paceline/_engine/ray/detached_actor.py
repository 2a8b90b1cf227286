"""Work that outlives the script that started it: a detached actor runs it and keeps its output.

The actor runs one callable in a thread. Output is kept and streamed to any number of followers, who may also request a
stop. The return value is kept until they have fetched it; then the actor exits. When its process or node is lost, Ray
restarts the actor elsewhere and the callable runs again: it must find out by itself how far it got.

The callable is part of the actor's class, which Ray keeps for as long as it may restart the actor. Arguments are owned
by the script and would be lost with it.
"""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import io
import pickle
import secrets
import threading
import traceback
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator

import msgspec

from paceline._engine.messages import encode_message
from paceline._engine.ray.connection import import_ray

NAMESPACE = "paceline"
MAX_RESTARTS = 100
MAX_WORK_BYTES = 64 << 20
"""Of the pickled callable: Ray rejects classes that are much larger."""
_MAX_KEPT_CHARS = 4 << 20
"""Characters of output kept for late followers."""
_LINGER_S = 5.0
"""How long to keep the outcome for followers that do not fetch it: they are gone or unreachable."""


class DetachedOutput(msgspec.Struct, frozen=True):
    """New output: pieces of text, each with its stream, 1 (stdout) or 2 (stderr)."""

    incarnation: str
    """Of the actor; numbering restarts with each one."""
    next_number: int
    """The number of the next piece."""
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
        self._waiting: set[Callable[[], None]] = set()
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

    def set_stop_handler(self, take: Callable[[bool], None] | None) -> None:
        """Forward stop requests, including earlier ones: at the next good moment, or immediately (True)."""
        with self._lock:
            self._stop_handler = take
            stops, self._pending_stops = (self._pending_stops, []) if take is not None else ([], self._pending_stops)
        for now in stops:
            assert take is not None
            take(now)

    # Called by the actor

    def request_stop(self, now: bool) -> None:
        with self._lock:
            take = self._stop_handler
            if take is None:
                self._pending_stops.append(now)
        if take is not None:
            take(now)

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
    def wake_on_output(self, wake: Callable[[], None]) -> Iterator[None]:
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

    async def follow(self, token: str, who: str, life: str, after: int) -> AsyncIterator[bytes]:
        """Stream all output from a position in one incarnation; in another incarnation, from the start."""
        self._check_token(token)
        with self._departure:
            self._present_followers.add(who)
        loop = asyncio.get_running_loop()
        news = asyncio.Event()
        number = after if life == self._followers.incarnation else 0
        first = True

        def wake() -> None:
            loop.call_soon_threadsafe(news.set)

        with self._followers.wake_on_output(wake):
            while True:
                news.clear()
                said = self._followers.read_since(number)
                number = said.next_number
                if first or said.pieces or said.is_over:
                    yield encode_message(said)
                first = False
                if said.is_over:
                    return
                await news.wait()

    async def stop(self, token: str, now: bool) -> None:
        self._check_token(token)
        self._followers.request_stop(now)

    async def outcome(self, token: str) -> bytes:
        """Return what the work returned, once it is over."""
        self._check_token(token)
        if self._outcome is None:
            raise RuntimeError(self._problem)
        return self._outcome

    async def leave(self, token: str, who: str) -> None:
        """Record that this follower needs nothing more."""
        self._check_token(token)
        with self._departure:
            self._present_followers.discard(who)
            self._departure.notify_all()

    def _check_token(self, token: str) -> None:
        if not hmac.compare_digest(token, self._token):
            raise PermissionError("the token is not that of this run's controller")

    def _run_work(self) -> None:
        followers = self._followers
        # This process does nothing else: anything printed in it is meant for the followers.
        with (
            contextlib.redirect_stdout(_FollowerStream(followers, 1)),
            contextlib.redirect_stderr(_FollowerStream(followers, 2)),
        ):
            try:
                self._outcome = pickle.loads(type(self).work)(followers)  # noqa: S301  as every actor's class and arguments
            except BaseException:  # noqa: BLE001  the work tells of its own errors; this one is told as it is
                self._problem = traceback.format_exc()
        followers.finish()
        with self._departure:
            self._departure.wait_for(lambda: not self._present_followers, timeout=_LINGER_S)
        import_ray().kill(self._handle)


def make_detached_actor(work: bytes) -> type[DetachedActor]:
    """Return the class of the actor that runs a pickled callable."""
    return type("DetachedActor", (DetachedActor,), {"work": work, "__module__": "__main__"})
