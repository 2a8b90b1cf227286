"""Sends updates to the open pages, over server-sent events.

Updates are read and encoded once, however many pages are open. A page that reads too slowly gets the current state when
it can receive again, and of what it missed only that it changed: nothing is queued for it. A page that does not read at
all is disconnected; when it reconnects it gets everything.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import MutableMapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from paceline._dashboard.access_gate import Receive, Scope, Send
from paceline._dashboard.answers import get_detail, get_last_step
from paceline._dashboard.listing_thread import MAX_PAUSE_S, MIN_PAUSE_S, ListingThread, compute_pause_s
from paceline._dashboard.query_fields import RequestRefusedError
from paceline._view.model import Summary, encode

if TYPE_CHECKING:
    from paceline._view.listing import Listing

log = logging.getLogger("paceline")

MAX_FOLLOWERS = 64
KEEPALIVE_S = 15.0
SEND_TIMEOUT_S = 20.0
POINTS_SHARE = 0.02
"""Share of one core for the plots of one page."""
MAX_DETAIL_BYTES_PER_S = 512 << 10
"""Limit for the detail of one run sent to one page: a large one is sent less often."""


@dataclass(frozen=True)
class WatchedRun:
    """The current state of a run that some page shows."""

    detail: bytes
    last_step: int
    points_cost_s: float
    """CPU time of the last request for its points."""


@dataclass(eq=False)
class PageFollower:
    """One open page."""

    run: str | None
    wake: asyncio.Event = field(default_factory=asyncio.Event)
    changed: set[str] = field(default_factory=set)
    has_stale_detail: bool = True
    """The run has changed since its detail was last sent."""
    detail_due_at: float = 0.0
    last_step: int = -1
    points_due_at: float = 0.0
    """When the next step may be sent, which makes the page request all plots again."""


class LiveUpdates:
    def __init__(self, reading: ListingThread) -> None:
        self._listing_thread = reading
        self._followers: set[PageFollower] = set()
        self._last_summaries: dict[str, Summary] = {}
        """The summaries last sent. A listing replaces the object when a summary changes."""
        self._summaries: dict[str, bytes] = {}
        self._watched: dict[str, WatchedRun] = {}
        self._points_cost_s: dict[str, float] = {}
        self._has_followers = asyncio.Event()
        self._closing = asyncio.Event()

    async def run(self) -> None:
        """Read updates while any page is connected. Runs until it is cancelled.

        Reads once before any page connects: much of a long run is read by the time a browser has opened.
        """
        problem = ""
        while True:
            try:
                await self._poll_runs()
                problem = ""
            except Exception as error:
                # For example, storage is unreachable: the pages stay connected, and the problem is logged once.
                if repr(error) != problem:
                    log.exception("cannot read runs; retrying every few seconds")
                problem = repr(error)
                await asyncio.sleep(MAX_PAUSE_S)
            await asyncio.sleep(max(self._listing_thread.stale_in_s(), 0.05))
            if not self._followers:
                self._has_followers.clear()
                self._last_summaries, self._summaries, self._watched = {}, {}, {}
                await self._has_followers.wait()

    def record_points_cost(self, run: str, cost_s: float) -> None:
        """Record the CPU time of a request for a run's points: the higher, the less often pages have to ask."""
        self._points_cost_s[run] = cost_s

    def close(self) -> None:
        """Disconnect all pages."""
        self._closing.set()
        for follower in self._followers:
            follower.wake.set()

    async def follow_page(self, run: str | None, receive: Receive, send: Send) -> None:
        """Serve one page's request for events until it disconnects."""
        if len(self._followers) >= MAX_FOLLOWERS:
            raise RequestRefusedError(503, f"{MAX_FOLLOWERS} pages are open already")
        follower = PageFollower(run)
        first = await self._encode_everything(follower)
        self._followers.add(follower)
        self._has_followers.set()
        headers = [(b"content-type", b"text/event-stream"), (b"x-accel-buffering", b"no")]
        gone = asyncio.create_task(_wait_for_disconnect(receive, follower))
        try:
            await send({"type": "http.response.start", "status": 200, "headers": headers})
            await _send_body(send, b"retry: 2000\n\n" + first)
            while not gone.done() and not self._closing.is_set():
                await self._send_news(follower, send)
            if not gone.done():
                await _send_body(send, b"", more=False)
        except TimeoutError:
            pass  # Send nothing more, whatever blocks the page: an unfinished response closes the connection.
        finally:
            self._followers.discard(follower)
            gone.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await gone

    async def _send_news(self, follower: PageFollower, send: Send) -> None:
        """Wait for an update, or for the next keep-alive, and send it."""
        now = time.monotonic()
        held_back = []
        if follower.run in self._watched:
            held_back = [follower.detail_due_at] if follower.has_stale_detail else []
            if self._watched[follower.run].last_step != follower.last_step:
                held_back.append(follower.points_due_at)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(max(min(held_back, default=now + KEEPALIVE_S) - now, 0.0)):
                await follower.wake.wait()
        if self._closing.is_set():
            return
        follower.wake.clear()
        await _send_body(send, self._encode_news(follower) or b": still here\n\n")

    def _encode_news(self, follower: PageFollower) -> bytes:
        news = b""
        changed, follower.changed = follower.changed, set()
        if changed:
            summaries = [self._summaries[run] for run in sorted(changed) if run in self._summaries]
            news = _encode_runs(summaries, sorted(changed - self._summaries.keys()))
        if follower.run in self._watched:
            news += _encode_run_news(follower, self._watched[follower.run])
        return news

    async def _encode_everything(self, follower: PageFollower) -> bytes:
        def read(listing: Listing) -> tuple[bytes, dict[str, WatchedRun]]:
            runs = _encode_runs([encode(summary) for summary in listing.summaries()], [])
            return runs, {} if follower.run is None else self._read_watched(listing, {follower.run})

        runs, watched = await self._listing_thread.query(read)
        return runs + b"".join(_encode_run_news(follower, run) for run in watched.values())

    async def _poll_runs(self) -> None:
        runs = {follower.run for follower in self._followers if follower.run is not None}

        def read(listing: Listing) -> tuple[dict[str, Summary], dict[str, bytes], dict[str, WatchedRun]]:
            # Compare with the listing's contents: what its refresh returned may have gone to another caller.
            summaries = {summary.id: summary for summary in listing.summaries()}
            before = self._last_summaries
            new = {id: encode(summary) for id, summary in summaries.items() if before.get(id) is not summary}
            stale = {run for run in runs if run in new or run not in self._watched}
            return summaries, new, self._read_watched(listing, stale)

        summaries, new, watched = await self._listing_thread.query(read)
        changed = new.keys() | (self._last_summaries.keys() - summaries.keys())
        self._last_summaries = summaries
        self._summaries = {id: summary for id, summary in self._summaries.items() if id in summaries} | new
        self._watched = {id: run for id, run in self._watched.items() if id in runs} | watched
        if not changed and not watched:
            return
        for follower in self._followers:
            follower.changed |= changed
            follower.has_stale_detail |= follower.run in watched
            follower.wake.set()

    def _read_watched(self, listing: Listing, runs: set[str]) -> dict[str, WatchedRun]:
        found = {}
        for run in runs:
            # A missing run may still appear: the page waits for it.
            with contextlib.suppress(RequestRefusedError):
                detail = encode(get_detail(listing, run))
                found[run] = WatchedRun(detail, get_last_step(listing, run), self._points_cost_s.get(run, 0.0))
        return found


def _encode_runs(summaries: list[bytes], gone: list[str]) -> bytes:
    return b'event: runs\ndata: {"runs":[' + b",".join(summaries) + b'],"gone":' + encode(gone) + b"}\n\n"


def _encode_run_news(follower: PageFollower, watched: WatchedRun) -> bytes:
    """Encode what the page does not have of its run and may get now."""
    parts, now = [], time.monotonic()
    if follower.has_stale_detail and follower.detail_due_at <= now:
        follower.has_stale_detail = False
        follower.detail_due_at = now + max(0.8 * MIN_PAUSE_S, len(watched.detail) / MAX_DETAIL_BYTES_PER_S)
        parts.append(b"event: run\ndata: %b\n\n" % watched.detail)
    if watched.last_step != follower.last_step and follower.points_due_at <= now:
        follower.last_step = watched.last_step
        follower.points_due_at = now + 0.8 * compute_pause_s(watched.points_cost_s, POINTS_SHARE)
        parts.append(b'event: points\ndata: {"last":%d}\n\n' % watched.last_step)
    return b"".join(parts)


async def _send_body(send: Send, body: bytes, *, more: bool = True) -> None:
    async with asyncio.timeout(SEND_TIMEOUT_S):
        await send({"type": "http.response.body", "body": body, "more_body": more})


async def _wait_for_disconnect(receive: Receive, follower: PageFollower) -> None:
    message: MutableMapping[str, Any] = {}
    while message.get("type") != "http.disconnect":
        message = await receive()
    follower.wake.set()


@dataclass(frozen=True)
class EventStream:
    """The response to `/api/events`, as an ASGI application."""

    live: LiveUpdates
    run: str | None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self.live.follow_page(self.run, receive, send)
