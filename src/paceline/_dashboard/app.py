"""The web application: paths to answers. What they are made of is in `answers.py`; who gets in, in `gate.py`."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Generator
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.gzip import GZipMiddleware
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import BaseRoute, Route

from paceline._core.errors import PacelineError
from paceline._dashboard import answers, control, files, prometheus
from paceline._dashboard.asked import Asked, Refused
from paceline._dashboard.beside import Beside
from paceline._dashboard.gate import App, Gate, Names
from paceline._dashboard.live import Events, Live
from paceline._dashboard.page import NAMES, page_file
from paceline._dashboard.reading import Reading
from paceline._dashboard.report import report_of
from paceline._view.model import encode

if TYPE_CHECKING:
    from paceline._view.listing import Listing

log = logging.getLogger("paceline")

T = TypeVar("T")
Answer = Callable[["Listing", Asked], Any]
Endpoint = Callable[[Request], Awaitable[Response]]

_OVER_A_SLOW_LINE = 500
"""Bytes from which on an answer is compressed."""


@dataclass(frozen=True)
class Dashboard:
    app: App
    live: Live


def dashboard(
    open_listing: Callable[[], Listing], root: str, *, token: str, names: Names, port: int, allow_control: bool
) -> Dashboard:
    """The application for the runs below a path. `root` is that path as it is shown."""
    reading = Reading(open_listing)
    live = Live(reading)
    site = _Site(root, reading, live, allow_control)
    app = Starlette(
        routes=site.routes(),
        middleware=[Middleware(GZipMiddleware, minimum_size=_OVER_A_SLOW_LINE, compresslevel=1)],
        exception_handlers={Refused: _refused, PacelineError: _told, HTTPException: _no_such, Exception: _failed},
        lifespan=site.lifespan,
    )
    return Dashboard(Gate(app, token=token, names=names, port=port), live)


class _Site:
    def __init__(self, root: str, reading: Reading, live: Live, allow_control: bool) -> None:
        self._root = root
        self._reading = reading
        self._live = live
        self._allow_control = allow_control
        # Files, and requests to runs: they may wait for long, and nobody is to wait for them.
        self._waiting = Beside("paceline-waiting", 4)

    def routes(self) -> list[BaseRoute]:
        return [
            Route("/", partial(self._page, "index.html")),
            *(Route(f"/{name}", partial(self._page, name)) for name in NAMES if name != "index.html"),
            Route("/api/about", self._about),
            Route("/api/runs", self._json(answers.runs)),
            Route("/api/run", self._json(answers.run)),
            Route("/api/metrics", self._metrics),
            Route("/api/metrics.csv", self._csv),
            Route("/api/use", self._json(answers.use)),
            Route("/api/logs", self._logs),
            Route("/api/diff", self._json(answers.diff)),
            Route("/api/search", self._json(answers.search)),
            Route("/api/file", self._file),
            Route("/api/report", self._report),
            Route("/api/events", self._events),
            *(Route(f"/api/{what}", self._control(what), methods=["POST"]) for what in control.REQUESTS),
            Route("/metrics", self._prometheus),
        ]

    @contextlib.asynccontextmanager
    async def lifespan(self, app: Starlette) -> AsyncIterator[None]:
        task = asyncio.create_task(self._live.run())
        try:
            yield
        finally:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task
            self._reading.close()
            self._waiting.close()

    async def _page(self, name: str, request: Request) -> Response:
        file = page_file(name)
        headers = {"ETag": file.tag, "Vary": "Accept-Encoding"}
        if request.headers.get("if-none-match") == file.tag:
            return Response(status_code=304, headers=headers)
        if "gzip" in request.headers.get("accept-encoding", ""):
            headers["Content-Encoding"] = "gzip"
            return Response(file.compressed, media_type=file.media_type, headers=headers)
        return Response(file.data, media_type=file.media_type, headers=headers)

    async def _about(self, request: Request) -> Response:
        return _json_of(encode(answers.about(self._root, self._allow_control)))

    def _json(self, answer: Answer) -> Endpoint:
        async def answered(request: Request) -> Response:
            asked = _asked(request)
            return _json_of(await self._reading.ask(lambda listing: encode(answer(listing, asked))))

        return answered

    async def _metrics(self, request: Request) -> Response:
        asked = _asked(request)

        def answered(listing: Listing) -> tuple[bytes, float]:
            began = time.thread_time()
            return encode(answers.metrics(listing, asked)), time.thread_time() - began

        body, cost_s = await self._reading.ask(answered)
        self._live.points_cost(asked.text("run"), cost_s)
        return _json_of(body)

    async def _logs(self, request: Request) -> Response:
        asked = _asked(request)
        home = await self._reading.ask(lambda listing: answers.reader_of(listing, asked.text("run")).home)
        return _json_of(await self._waiting.do(lambda: encode(answers.log_page(home, asked))))

    async def _csv(self, request: Request) -> Response:
        asked = _asked(request)
        reader = await self._reading.ask(lambda listing: answers.reader_of(listing, asked.text("run")))
        names = asked.all("name") or reader.metric_names()
        headers = {"Content-Disposition": 'attachment; filename="metrics.csv"'}
        lines = answers.csv_lines(reader.rows(names), names)
        return StreamingResponse(self._sent(lines), media_type="text/csv; charset=utf-8", headers=headers)

    async def _file(self, request: Request) -> Response:
        asked = _asked(request)
        run, path = asked.text("run"), asked.text("path")

        def found(listing: Listing) -> tuple[Any, files.Offered]:
            return answers.reader_of(listing, run).home, files.offered(answers.detail_of(listing, run), path)

        home, offered = await self._reading.ask(found)
        parts = files.chunks(await self._waiting.do(lambda: files.opened(home, path)))
        return StreamingResponse(self._sent(parts), media_type=offered.media_type, headers=offered.headers())

    async def _report(self, request: Request) -> Response:
        run = _asked(request).text("run")
        made = await self._reading.ask(lambda listing: report_of(listing, run))
        headers = {"Content-Disposition": 'attachment; filename="report.html"'}
        return Response(made, media_type="text/html; charset=utf-8", headers=headers)

    async def _events(self, request: Request) -> Response:
        return Events(self._live, _asked(request).optional("run"))  # type: ignore[return-value]

    async def _prometheus(self, request: Request) -> Response:
        text = await self._reading.ask(prometheus.exposition)
        return Response(text, media_type=prometheus.MEDIA_TYPE)

    def _control(self, what: str) -> Endpoint:
        async def done(request: Request) -> Response:
            if not self._allow_control:
                raise Refused(403, "this dashboard only shows: start it with --allow-control")
            wanted = control.wanted(what, await _body(request))
            run = _asked(request).text("run")
            home = await self._reading.ask(lambda listing: answers.home_of(listing, run))
            return _json_of(await self._waiting.do(lambda: encode(control.request(home, wanted))))

        return done

    async def _sent(self, parts: Generator[bytes, None, None]) -> AsyncIterator[bytes]:
        """One after the other, as fast as they are taken."""
        try:
            while (part := await self._waiting.do(lambda: next(parts, None))) is not None:
                yield part
        finally:
            parts.close()


def _asked(request: Request) -> Asked:
    return Asked.of_query(request.scope["query_string"])


async def _body(request: Request) -> bytes:
    body = b""
    async for part in request.stream():
        body += part
        if len(body) > control.MOST_BODY_BYTES:
            raise Refused(413, f"the body may have {control.MOST_BODY_BYTES} bytes")
    return body


def _json_of(body: bytes, status: int = 200) -> Response:
    return Response(body, status, media_type="application/json")


def _error(status: int, text: str) -> Response:
    return _json_of(encode({"error": text}), status)


async def _refused(request: Request, error: Exception) -> Response:
    assert isinstance(error, Refused)
    return _error(error.status, error.text)


async def _told(request: Request, error: Exception) -> Response:
    log.warning("%s: %s", request.url.path, error)
    return _error(500, str(error))


async def _no_such(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    return _error(error.status_code, error.detail)


async def _failed(request: Request, error: Exception) -> Response:
    """A mistake of ours. The server's log has the traceback, the page does not."""
    return _error(500, "this could not be answered; the terminal of the dashboard has the reason")
