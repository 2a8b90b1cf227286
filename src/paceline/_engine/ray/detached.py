"""Work that outlives the script that began it: an actor that belongs to no script, runs it, and keeps what it says.

The actor runs one callable in a thread. What that prints is kept and handed to any number of followers as it comes;
they may ask it to stop; what it returns is kept until they have it. Then the actor ends. When its process or node is
lost, Ray starts it again elsewhere, and the callable runs anew: it has to know by itself where it stood.

The callable travels inside the actor's class, which Ray keeps for as long as the actor may be started again; arguments
are kept by the script, and would go with it.
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

from paceline._engine.messages import encode
from paceline._engine.ray.connect import imported

NAMESPACE = "paceline"
MAX_RESTARTS = 100
MAX_BYTES = 64 << 20
"""Of the pickled callable: Ray refuses classes that are much larger."""
_MAX_KEPT = 4 << 20
"""Characters of output that are kept for followers who come late."""
_LINGER_S = 5.0
"""How long the outcome is kept for followers who do not come for it: they are gone, or cannot be reached."""


class Said(msgspec.Struct, frozen=True):
    """Output since the last time: pieces of text, each with the stream it went to, 1 or 2."""

    life: str
    """Of the actor: it begins anew with each."""
    until: int
    """The number of the next piece."""
    pieces: tuple[tuple[int, str], ...] = ()
    over: bool = False


class Followers:
    """Those who follow the work, as it sees them: what they are told, and what they ask for."""

    def __init__(self, actor_id: str, again: bool) -> None:
        self.actor_id = actor_id
        """The same in each life of the actor."""
        self.again = again
        """An earlier life of the actor was lost."""
        self.life = secrets.token_hex(4)
        self.over = False
        self._pieces: deque[tuple[int, str]] = deque()
        self._num_dropped = 0
        self._num_chars = 0
        self._lock = threading.Lock()
        self._waiting: set[Callable[[], None]] = set()
        self._stops: list[bool] = []
        self._take: Callable[[bool], None] | None = None

    def tell(self, stream: int, text: str) -> None:
        with self._lock:
            self._pieces.append((stream, text))
            self._num_chars += len(text)
            while self._num_chars > _MAX_KEPT and len(self._pieces) > 1:
                self._num_chars -= len(self._pieces.popleft()[1])
                self._num_dropped += 1
        self._wake()

    def heard_by(self, take: Callable[[bool], None] | None) -> None:
        """Pass on requests to stop, also those that came before: at the next good moment, or now (True)."""
        with self._lock:
            self._take = take
            stops, self._stops = (self._stops, []) if take is not None else ([], self._stops)
        for now in stops:
            assert take is not None
            take(now)

    # What the actor calls

    def stop(self, now: bool) -> None:
        with self._lock:
            take = self._take
            if take is None:
                self._stops.append(now)
        if take is not None:
            take(now)

    def end(self) -> None:
        self.over = True
        self._wake()

    def since(self, number: int) -> Said:
        with self._lock:
            first = max(0, number - self._num_dropped)
            pieces = tuple(self._pieces)[first:]
            # Asked for before the pieces were taken, it could be over and some of them missing.
            return Said(self.life, self._num_dropped + len(self._pieces), pieces, self.over)

    @contextlib.contextmanager
    def waking(self, wake: Callable[[], None]) -> Iterator[None]:
        with self._lock:
            self._waiting.add(wake)
        try:
            yield
        finally:
            with self._lock:
                self._waiting.discard(wake)

    def _wake(self) -> None:
        with self._lock:
            waiting = list(self._waiting)
        for wake in waiting:
            wake()


class _Stream(io.TextIOBase):
    """Standard output or error of the work."""

    def __init__(self, followers: Followers, number: int) -> None:
        self._followers = followers
        self._number = number

    def writable(self) -> bool:
        return True

    def write(self, text: str) -> int:
        if text:
            self._followers.tell(self._number, text)
        return len(text)


class Keeper:
    """The actor. Whoever asks it for anything has to know its token."""

    work: bytes
    """The pickled callable: it is given the `Followers`, and returns bytes. In a class of its own for each work."""

    def __init__(self, token: str) -> None:
        self._token = token
        runtime = imported().get_runtime_context()
        self._me = runtime.current_actor
        self._followers = Followers(runtime.get_actor_id(), runtime.was_current_actor_reconstructed)
        self._outcome: bytes | None = None
        self._problem = ""
        self._present: set[str] = set()
        self._left = threading.Condition()
        # Not in a method: after a restart nobody may be there to call one.
        threading.Thread(target=self._run, name="paceline-work", daemon=True).start()

    async def is_over(self, token: str) -> bool:
        self._check(token)
        return self._followers.over

    async def follow(self, token: str, who: str, life: str, after: int) -> AsyncIterator[bytes]:
        """All that is said, from a place in a life of this actor on; in another life, from its beginning."""
        self._check(token)
        with self._left:
            self._present.add(who)
        loop = asyncio.get_running_loop()
        news = asyncio.Event()
        number = after if life == self._followers.life else 0
        first = True

        def wake() -> None:
            loop.call_soon_threadsafe(news.set)

        with self._followers.waking(wake):
            while True:
                news.clear()
                said = self._followers.since(number)
                number = said.until
                if first or said.pieces or said.over:
                    yield encode(said)
                first = False
                if said.over:
                    return
                await news.wait()

    async def stop(self, token: str, now: bool) -> None:
        self._check(token)
        self._followers.stop(now)

    async def outcome(self, token: str) -> bytes:
        """What the work returned, once it is over."""
        self._check(token)
        if self._outcome is None:
            raise RuntimeError(self._problem)
        return self._outcome

    async def leave(self, token: str, who: str) -> None:
        """This follower needs nothing more."""
        self._check(token)
        with self._left:
            self._present.discard(who)
            self._left.notify_all()

    def _check(self, token: str) -> None:
        if not hmac.compare_digest(token, self._token):
            raise PermissionError("the token is not that of this run's controller")

    def _run(self) -> None:
        followers = self._followers
        # This process has nothing else to do: what anybody prints in it is meant for those who follow.
        with contextlib.redirect_stdout(_Stream(followers, 1)), contextlib.redirect_stderr(_Stream(followers, 2)):
            try:
                self._outcome = pickle.loads(type(self).work)(followers)  # noqa: S301  as every actor's class and arguments
            except BaseException:  # noqa: BLE001  the work tells of its own errors; this one is told as it is
                self._problem = traceback.format_exc()
        followers.end()
        with self._left:
            self._left.wait_for(lambda: not self._present, timeout=_LINGER_S)
        imported().kill(self._me)


def keeper_of(work: bytes) -> type[Keeper]:
    """The class of the actor that runs a pickled callable."""
    return type("Keeper", (Keeper,), {"work": work, "__module__": "__main__"})
