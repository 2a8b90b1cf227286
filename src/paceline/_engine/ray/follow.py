"""The script's side of detached work: begin or find it, hear what it says, ask it to stop, take what came of it."""

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

from paceline._engine.ray.connect import imported
from paceline._engine.ray.detached import MAX_RESTARTS, NAMESPACE, Said, keeper_of
from paceline._engine.ray.nodes import first_line, loss_of
from paceline._engine.ray.presence import Presence

_LOOK_S = 0.2
_RETRY_S = 0.5
_NAME_FREE_S = 20.0
"""How long the end of an actor whose work is over is waited for; it keeps the outcome for its followers a while."""

Write = Callable[[int, str], None]
"""Takes the output: the stream, 1 or 2, and the text."""


class GoneError(ConnectionError):
    """The actor has ended, and nobody starts it again."""


@dataclass(frozen=True)
class Link:
    actor: Any
    token: str
    is_new: bool
    """Begun by this process, and not found there."""


def found(name: str, token: str, presence: Presence) -> Link | None:
    """The work of this name, if it is under way; `PermissionError` where the token is not its own."""
    ray = imported()

    def look() -> Link | None:
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
            over = False  # It is being started again.
        return None if over else Link(actor, token, is_new=False)

    return presence.asked(look)


def begun(name: str, token: str, work: bytes, runtime_env: Mapping[str, Any] | None, presence: Presence) -> Link:
    """The work of this name: as it is found under way, or begun now."""
    ray = imported()
    options: dict[str, Any] = {
        "name": name,
        "namespace": NAMESPACE,
        "lifetime": "detached",
        "max_restarts": MAX_RESTARTS,
        "num_cpus": 0,
    }
    if runtime_env is not None:
        options["runtime_env"] = dict(runtime_env)
    deadline = time.monotonic() + _NAME_FREE_S

    def begin() -> Link:
        actor = ray.remote(keeper_of(work)).options(**options).remote(token)
        try:
            ray.get(actor.is_over.remote(token))
        except ray.exceptions.RayError as error:
            raise GoneError(f"the controller could not be started: {first_line(loss_of(error))}") from error
        return Link(actor, token, is_new=True)

    while True:
        link = found(name, token, presence)
        if link is not None:
            return link
        try:
            return presence.asked(begin)
        except ValueError as error:
            # The name is taken: by another script at this moment, or by an actor that is about to end.
            if time.monotonic() > deadline:
                raise GoneError(f"the controller named {name!r} neither works nor ends: {error}") from error
            time.sleep(_LOOK_S)


class Following:
    """One conversation with detached work, until it is over."""

    def __init__(self, link: Link, write: Write, say: Callable[[str], None], presence: Presence) -> None:
        self._link = link
        self._write = write
        self._say = say
        self._presence = presence
        self._ray = imported()
        self._who = secrets.token_hex(8)
        self._inbox: queue.SimpleQueue[Said | Exception | bool] = queue.SimpleQueue()
        self._life, self._until = "", 0
        self._asked: list[bool] = []

    def ask_to_stop(self, *, now: bool) -> None:
        """May be called by signal handlers and other threads."""
        self._inbox.put(now)

    def outcome(self) -> bytes:
        """What the work returned; until then, what it says is written as it comes."""
        self._listen()
        lost = False
        while True:
            news = self._news()
            if news is None:
                self._presence.raise_if_lost()
            elif isinstance(news, bool):
                self._asked.append(news)
                self._stop(news)
            elif isinstance(news, Exception):
                self._check(news)
                if not lost:
                    self._say("the controller was lost, and is being started again elsewhere: waiting for it")
                lost = True
                time.sleep(_RETRY_S)
                self._listen()
            else:
                if lost:
                    for now in self._asked:
                        self._stop(now)
                lost = False
                self._life, self._until = news.life, news.until
                for stream, text in news.pieces:
                    self._write(stream, text)
                if news.over:
                    break
        return self._presence.asked(self._taken)

    def _news(self) -> Said | Exception | bool | None:
        try:
            return self._inbox.get(timeout=_RETRY_S)
        except queue.Empty:
            return None

    def leave(self) -> None:
        """Follow no further; the work goes on."""
        self._link.actor.leave.remote(self._link.token, self._who)

    def _listen(self) -> None:
        threading.Thread(target=lambda: asyncio.run(self._hear()), name="paceline-follow", daemon=True).start()

    async def _hear(self) -> None:
        # Asynchronous, for what waits so is let go when the process ends. Otherwise, where the cluster is lost, Ray
        # would then look for another one to ask.
        follow = self._link.actor.follow.options(num_returns="streaming")
        try:
            async for ref in follow.remote(self._link.token, self._who, self._life, self._until):
                self._inbox.put(msgspec.json.decode(await ref, type=Said))
        except (self._ray.exceptions.RayError, PermissionError) as error:
            self._inbox.put(error)

    def _stop(self, now: bool) -> None:
        self._link.actor.stop.remote(self._link.token, now)

    def _check(self, problem: Exception) -> None:
        """Raise it, unless the actor will be back."""
        if isinstance(problem, PermissionError):
            raise PermissionError("the token is not that of this run's controller") from problem
        if isinstance(problem, self._ray.exceptions.ActorDiedError):
            raise GoneError("the controller has ended, and is not started again") from problem
        if isinstance(problem, self._ray.exceptions.RayTaskError):
            raise problem
        self._presence.raise_if_lost()

    def _taken(self) -> bytes:
        outcome: bytes = self._ray.get(self._link.actor.outcome.remote(self._link.token))
        self.leave()
        return outcome
