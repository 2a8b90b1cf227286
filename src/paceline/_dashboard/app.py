"""The web application: maps paths to answers. `answers.py` computes them; `access_gate.py` controls access."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Generator
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
from paceline._dashboard.access_gate import AccessGate, AllowedHosts, App
from paceline._dashboard.files import PAGE_FILE_NAMES, load_page_file
from paceline._dashboard.listing_thread import DaemonThreads, ListingThread
from paceline._dashboard.live_updates import EventStream, LiveUpdates
from paceline._dashboard.query_fields import QueryFields, RequestRefusedError
from paceline._dashboard.report import build_listed_report
from paceline._view.model import encode

if TYPE_CHECKING:
    from paceline._view.listing import Listing

log = logging.getLogger("paceline")

T = TypeVar("T")
Answer = Callable[["Listing", QueryFields], Any]
Endpoint = Callable[[Request], Awaitable[Response]]

_MIN_GZIP_BYTES = 500


def create_dashboard(
    open_listing: Callable[[], Listing], root: str, *, token: str, names: AllowedHosts, port: int, allow_control: bool
) -> tuple[App, LiveUpdates]:
    """Create the application for the runs below a path. `root` is that path as displayed."""
    reading = ListingThread(open_listing)
    live = LiveUpdates(reading)
    endpoints = _Endpoints(root, reading, live, allow_control)
    app = Starlette(
        routes=endpoints.routes(),
        middleware=[Middleware(GZipMiddleware, minimum_size=_MIN_GZIP_BYTES, compresslevel=1)],
        exception_handlers=dict.fromkeys((RequestRefusedError, PacelineError, HTTPException, Exception), _handle_error),
        lifespan=endpoints.lifespan,
    )
    return AccessGate(app, token=token, names=names, port=port), live


class _Endpoints:
    def __init__(self, root: str, reading: ListingThread, live: LiveUpdates, allow_control: bool) -> None:
        self._root = root
        self._listing_thread = reading
        self._live = live
        self._allow_control = allow_control
        # For files and requests to runs: they may block for long, and nothing else should wait for them.
        self._slow_threads = DaemonThreads("paceline-waiting", 4)

    def routes(self) -> list[BaseRoute]:
        return [
            Route("/", partial(self._send_page, "index.html")),
            *(Route(f"/{name}", partial(self._send_page, name)) for name in PAGE_FILE_NAMES if name != "index.html"),
            Route("/api/about", self._send_about),
            Route("/api/runs", self._json_endpoint(answers.get_runs)),
            Route("/api/run", self._json_endpoint(answers.get_run)),
            Route("/api/metrics", self._send_metrics),
            Route("/api/metrics.csv", self._send_csv),
            Route("/api/use", self._json_endpoint(answers.get_usage)),
            Route("/api/logs", self._send_logs),
            Route("/api/diff", self._json_endpoint(answers.get_diff)),
            Route("/api/search", self._json_endpoint(answers.get_search)),
            Route("/api/file", self._send_file),
            Route("/api/report", self._send_report),
            Route("/api/events", self._send_events),
            *(Route(f"/api/{name}", self._control_endpoint(name), methods=["POST"]) for name in control.BODY_TYPES),
            Route("/metrics", self._send_prometheus),
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
            self._listing_thread.close()
            self._slow_threads.close()

    async def _send_page(self, name: str, request: Request) -> Response:
        file = load_page_file(name)
        headers = {"ETag": file.etag, "Vary": "Accept-Encoding"}
        if request.headers.get("if-none-match") == file.etag:
            return Response(status_code=304, headers=headers)
        if "gzip" in request.headers.get("accept-encoding", ""):
            headers["Content-Encoding"] = "gzip"
            return Response(file.gzip_data, media_type=file.media_type, headers=headers)
        return Response(file.data, media_type=file.media_type, headers=headers)

    async def _send_about(self, request: Request) -> Response:
        return _json_response(encode(answers.get_about(self._root, self._allow_control)))

    def _json_endpoint(self, answer: Answer) -> Endpoint:
        async def endpoint(request: Request) -> Response:
            fields = _parse_query(request)
            return _json_response(await self._listing_thread.query(lambda listing: encode(answer(listing, fields))))

        return endpoint

    async def _send_metrics(self, request: Request) -> Response:
        fields = _parse_query(request)

        def encode_metrics(listing: Listing) -> tuple[bytes, float]:
            began = time.thread_time()
            return encode(answers.get_metrics(listing, fields)), time.thread_time() - began

        body, cost_s = await self._listing_thread.query(encode_metrics)
        self._live.record_points_cost(fields.text("run"), cost_s)
        return _json_response(body)

    async def _send_logs(self, request: Request) -> Response:
        fields = _parse_query(request)
        reader = await self._listing_thread.query(lambda listing: answers.get_reader(listing, fields.text("run")))
        return await self._answer_slowly(lambda: answers.get_log_page(reader.location, fields))

    async def _send_csv(self, request: Request) -> Response:
        fields = _parse_query(request)
        reader = await self._listing_thread.query(lambda listing: answers.get_reader(listing, fields.text("run")))
        names = fields.all_texts("name") or reader.metric_names()
        headers = {"Content-Disposition": 'attachment; filename="metrics.csv"'}
        lines = answers.iter_csv_chunks(reader.rows(names), names)
        return StreamingResponse(self._stream_parts(lines), media_type="text/csv; charset=utf-8", headers=headers)

    async def _send_file(self, request: Request) -> Response:
        fields = _parse_query(request)
        run, path = fields.text("run"), fields.text("path")

        def find_file(listing: Listing) -> tuple[Any, files.FileDelivery]:
            location = answers.get_reader(listing, run).location
            return location, files.find_delivery(answers.get_detail(listing, run), path)

        location, delivery = await self._listing_thread.query(find_file)
        file = await self._slow_threads.run_in_thread(lambda: files.open_run_file(location, path))
        parts = files.iter_file_chunks(file)
        return StreamingResponse(self._stream_parts(parts), media_type=delivery.media_type, headers=delivery.headers())

    async def _send_report(self, request: Request) -> Response:
        run = _parse_query(request).text("run")
        page = await self._listing_thread.query(lambda listing: build_listed_report(listing, run))
        headers = {"Content-Disposition": 'attachment; filename="report.html"'}
        return Response(page, media_type="text/html; charset=utf-8", headers=headers)

    async def _send_events(self, request: Request) -> Response:
        return EventStream(self._live, _parse_query(request).optional_text("run"))  # type: ignore[return-value]

    async def _send_prometheus(self, request: Request) -> Response:
        text = await self._listing_thread.query(prometheus.render_exposition)
        return Response(text, media_type=prometheus.MEDIA_TYPE)

    def _control_endpoint(self, name: str) -> Endpoint:
        async def endpoint(request: Request) -> Response:
            if not self._allow_control:
                raise RequestRefusedError(403, "this dashboard is read-only: start it with --allow-control")
            body = control.parse_control_body(name, await _read_body(request))
            run = _parse_query(request).text("run")
            location = await self._listing_thread.query(lambda listing: answers.get_location(listing, run))
            return await self._answer_slowly(lambda: control.request(location, body))

        return endpoint

    async def _answer_slowly(self, compute: Callable[[], Any]) -> Response:
        return _json_response(await self._slow_threads.run_in_thread(lambda: encode(compute())))

    async def _stream_parts(self, parts: Generator[bytes, None, None]) -> AsyncIterator[bytes]:
        """Yield the parts one by one, as fast as the client takes them."""
        try:
            while (part := await self._slow_threads.run_in_thread(lambda: next(parts, None))) is not None:
                yield part
        finally:
            parts.close()


def _parse_query(request: Request) -> QueryFields:
    return QueryFields.from_query(request.scope["query_string"])


async def _read_body(request: Request) -> bytes:
    body = b""
    async for part in request.stream():
        body += part
        if len(body) > control.MAX_BODY_BYTES:
            raise RequestRefusedError(413, f"the body must have at most {control.MAX_BODY_BYTES} bytes")
    return body


def _json_response(body: bytes, status: int = 200) -> Response:
    return Response(body, status, media_type="application/json")


async def _handle_error(request: Request, error: Exception) -> Response:
    # The server's log has the traceback, the page does not.
    status, text = 500, "internal error; see the terminal of the dashboard"
    if isinstance(error, RequestRefusedError):
        status, text = error.status, error.text
    elif isinstance(error, HTTPException):
        status, text = error.status_code, error.detail
    elif isinstance(error, PacelineError):
        log.warning("%s: %s", request.url.path, error)
        text = str(error)
    return _json_response(encode({"error": text}), status)
