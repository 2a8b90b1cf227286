"""Tells the open pages what is new, over server-sent events.

News is read and written down once, however many pages are open. A page that reads slower than things happen is told
what holds when it can be told something, and of what it missed only that it changed: nothing is kept for it. One that
does not read at all is let go; it connects again when it can and is told everything.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import MutableMapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from paceline._dashboard.answers import detail_of, last_step
from paceline._dashboard.asked import Refused
from paceline._dashboard.gate import Receive, Scope, Send
from paceline._dashboard.reading import OFTEN_S, SELDOM_S, Reading, pause_s
from paceline._view.model import Summary, encode

if TYPE_CHECKING:
    from paceline._view.listing import Listing

log = logging.getLogger("paceline")

MOST_FOLLOWERS = 64
ALIVE_S = 15.0
PATIENCE_S = 20.0
"""For a page that does not read."""
POINTS_SHARE = 0.02
"""Of one core, for the plots of one page."""
BYTES_PER_S = 512 << 10
"""Of one run's detail to one page: a large one is told less often."""


@dataclass(frozen=True)
class Watched:
    """A run that some page shows, as it is now."""

    detail: bytes
    last: int
    points_cost_s: float
    """Of a processor, when points of it were last asked for."""


@dataclass(eq=False)
class Follower:
    """One open page."""

    run: str | None
    wake: asyncio.Event = field(default_factory=asyncio.Event)
    changed: set[str] = field(default_factory=set)
    dirty: bool = True
    """Its run is another than it was told."""
    detail_at: float = 0.0
    """When its run may be told again."""
    last: int = -1
    """The step that it was told of."""
    points_at: float = 0.0
    """When it may be told of another, which makes it ask for all plots again."""


class Live:
    def __init__(self, reading: Reading) -> None:
        self._reading = reading
        self._followers: set[Follower] = set()
        self._known: dict[str, Summary] = {}
        """As they were told last. What a listing has changed is another object there."""
        self._summaries: dict[str, bytes] = {}
        self._watched: dict[str, Watched] = {}
        self._points_cost_s: dict[str, float] = {}
        self._somebody = asyncio.Event()
        self._closing = asyncio.Event()

    async def run(self) -> None:
        """Read what is new for as long as somebody listens. Ends when it is cancelled.

        Once before anybody does: until a browser has opened, much of a long run is read.
        """
        problem = ""
        while True:
            try:
                await self._look()
                problem = ""
            except Exception as error:
                # Storage that cannot be reached now, say: the pages stay, and it is said once.
                if repr(error) != problem:
                    log.exception("runs could not be read; trying again every few seconds")
                problem = repr(error)
                await asyncio.sleep(SELDOM_S)
            await asyncio.sleep(max(self._reading.is_old_in_s(), 0.05))
            if not self._followers:
                self._somebody.clear()
                self._known, self._summaries, self._watched = {}, {}, {}
                await self._somebody.wait()

    def points_cost(self, run: str, cost_s: float) -> None:
        """What it took to answer a page's question for points of a run: the more, the less often it is made to ask."""
        self._points_cost_s[run] = cost_s

    def close(self) -> None:
        """Let all pages go."""
        self._closing.set()
        for follower in self._followers:
            follower.wake.set()

    async def follow(self, run: str | None, receive: Receive, send: Send) -> None:
        """Answer one page's request for events, until it goes."""
        if len(self._followers) >= MOST_FOLLOWERS:
            raise Refused(503, f"{MOST_FOLLOWERS} pages are open already")
        follower = Follower(run)
        first = await self._everything(follower)
        self._followers.add(follower)
        self._somebody.set()
        headers = [(b"content-type", b"text/event-stream"), (b"x-accel-buffering", b"no")]
        gone = asyncio.create_task(_gone(receive, follower))
        try:
            await send({"type": "http.response.start", "status": 200, "headers": headers})
            await _told(send, b"retry: 2000\n\n" + first)
            while not gone.done() and not self._closing.is_set():
                await self._tell(follower, send)
            if not gone.done():
                await _told(send, b"", more=False)
        except TimeoutError:
            # Whatever is in its way, no more is put there: an answer that is not ended closes the connection.
            return
        finally:
            self._followers.discard(follower)
            gone.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await gone

    async def _tell(self, follower: Follower, send: Send) -> None:
        """Wait for something to tell, or until it is time to show that we are there, and tell it."""
        now = time.monotonic()
        held_back = []
        if follower.run in self._watched:
            held_back = [follower.detail_at] if follower.dirty else []
            if self._watched[follower.run].last != follower.last:
                held_back.append(follower.points_at)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(max(min(held_back, default=now + ALIVE_S) - now, 0.0)):
                await follower.wake.wait()
        if self._closing.is_set():
            return
        follower.wake.clear()
        await _told(send, self._news(follower) or b": still here\n\n")

    def _news(self, follower: Follower) -> bytes:
        parts = []
        changed, follower.changed = follower.changed, set()
        if changed:
            there = [self._summaries[run] for run in sorted(changed) if run in self._summaries]
            parts.append(_runs(there, sorted(changed - self._summaries.keys())))
        if follower.run in self._watched:
            parts.append(_of_run(follower, self._watched[follower.run]))
        return b"".join(parts)

    async def _everything(self, follower: Follower) -> bytes:
        def read(listing: Listing) -> tuple[bytes, dict[str, Watched]]:
            runs = _runs([encode(summary) for summary in listing.summaries()], [])
            return runs, {} if follower.run is None else self._read(listing, {follower.run})

        runs, watched = await self._reading.ask(read)
        return runs + b"".join(_of_run(follower, one) for one in watched.values())

    async def _look(self) -> None:
        runs = {follower.run for follower in self._followers if follower.run is not None}

        def read(listing: Listing) -> tuple[dict[str, Summary], dict[str, bytes], dict[str, Watched]]:
            # By what the listing has and not by what it says to have read: that may have been for somebody else.
            there = {one.id: one for one in listing.summaries()}
            new = {id: encode(one) for id, one in there.items() if self._known.get(id) is not one}
            return there, new, self._read(listing, {run for run in runs if run in new or run not in self._watched})

        there, new, watched = await self._reading.ask(read)
        changed = new.keys() | (self._known.keys() - there.keys())
        self._known = there
        self._summaries = {id: one for id, one in self._summaries.items() if id in there} | new
        self._watched = {run: one for run, one in self._watched.items() if run in runs} | watched
        if not changed and not watched:
            return
        for follower in self._followers:
            follower.changed |= changed
            follower.dirty |= follower.run in watched
            follower.wake.set()

    def _read(self, listing: Listing, runs: set[str]) -> dict[str, Watched]:
        found = {}
        for run in runs:
            # One that is not there may come yet: the page waits for it.
            with contextlib.suppress(Refused):
                detail = encode(detail_of(listing, run))
                found[run] = Watched(detail, last_step(listing, run), self._points_cost_s.get(run, 0.0))
        return found


def _runs(summaries: list[bytes], gone: list[str]) -> bytes:
    return b'event: runs\ndata: {"runs":[' + b",".join(summaries) + b'],"gone":' + encode(gone) + b"}\n\n"


def _of_run(follower: Follower, watched: Watched) -> bytes:
    """What the page has not been told of its run, and may be told now."""
    parts, now = [], time.monotonic()
    if follower.dirty and follower.detail_at <= now:
        follower.dirty = False
        follower.detail_at = now + max(0.8 * OFTEN_S, len(watched.detail) / BYTES_PER_S)
        parts.append(b"event: run\ndata: %b\n\n" % watched.detail)
    if watched.last != follower.last and follower.points_at <= now:
        follower.last = watched.last
        follower.points_at = now + 0.8 * pause_s(watched.points_cost_s, POINTS_SHARE)
        parts.append(b'event: points\ndata: {"last":%d}\n\n' % watched.last)
    return b"".join(parts)


async def _told(send: Send, body: bytes, *, more: bool = True) -> None:
    async with asyncio.timeout(PATIENCE_S):
        await send({"type": "http.response.body", "body": body, "more_body": more})


async def _gone(receive: Receive, follower: Follower) -> None:
    message: MutableMapping[str, Any] = {}
    while message.get("type") != "http.disconnect":
        message = await receive()
    follower.wake.set()


@dataclass(frozen=True)
class Events:
    """The answer to `/api/events`, as an ASGI application."""

    live: Live
    run: str | None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self.live.follow(self.run, receive, send)
