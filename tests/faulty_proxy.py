"""A real HTTP proxy in front of a real server, which answers wrongly on request.

500, 503, 429         that status instead of an answer; the server hears nothing
reset                 the connection is reset before the server hears anything
lost reply            the server does what it was asked, and the connection is reset in place of its reply
cut                   half of the reply, and the connection is closed
short                 half of the reply, passed off as all of it
slow                  the reply comes, a little at a time
stall                 nothing comes, for as long as the proxy lives
"""

import contextlib
import http.client
import socket
import struct
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from servers import Server

STATUSES = {
    "500": (500, "InternalError"),
    "503": (503, "SlowDown"),
    "429": (429, "TooManyRequests"),
    "403": (403, "AccessDenied"),
}


class FaultyProxy:
    def __init__(self, upstream: Server) -> None:
        self.upstream = upstream
        self.requests: list[tuple[str, str]] = []
        """(method, path) of every request, faulty or not."""
        self.closing = threading.Event()
        # Protects the faults, which many connections take from.
        self._lock = threading.Lock()
        self._faults: list[list] = []
        self._server = _Server(("127.0.0.1", 0), type("Handler", (_Handler,), {"proxy": self}))
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True, kwargs={"poll_interval": 0.02})
        self._thread.start()

    @property
    def authority(self) -> str:
        return f"127.0.0.1:{self._server.server_address[1]}"

    def plant(self, kind: str, *, method: str = "", path: str = "", times: int = 1) -> None:
        """Answer the next `times` requests of this method, with this in their path, in this way."""
        with self._lock:
            self._faults.append([kind, method, path, times])

    def clear(self) -> None:
        with self._lock:
            self._faults.clear()
            self.requests.clear()

    def left(self) -> int:
        """How many of the planted faults nobody has met."""
        with self._lock:
            return sum(fault[3] for fault in self._faults)

    def fault_for(self, method: str, path: str) -> str:
        with self._lock:
            self.requests.append((method, path))
            for fault in self._faults:
                if fault[3] and fault[1] in ("", method) and fault[2] in path:
                    fault[3] -= 1
                    return fault[0]
        return ""

    def close(self) -> None:
        self.closing.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False

    def handle_error(self, request, client_address) -> None:
        """A client that went away is what these tests are about."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    proxy: FaultyProxy

    def handle_any(self) -> None:
        fault = self.proxy.fault_for(self.command, self.path)
        if fault == "stall":
            self.proxy.closing.wait()
            self._reset()
            return
        body = self._body()
        if fault == "reset":
            self._reset()
            return
        if fault in STATUSES:
            self._refuse(*STATUSES[fault])
            return
        status, headers, reply = self._forwarded(body)
        if fault == "lost reply":
            self._reset()
            return
        if fault == "short":
            reply = reply[: len(reply) // 2]
        self.send_response(status)
        for name, value in headers:
            if name.lower() not in ("content-length", "transfer-encoding", "connection", "date", "server"):
                self.send_header(name, value)
        length = next((int(value) for name, value in headers if name.lower() == "content-length"), len(reply))
        self.send_header("Content-Length", str(length if self.command == "HEAD" else len(reply)))
        self.end_headers()
        if fault == "cut":
            self.wfile.write(reply[: len(reply) // 2])
            self.close_connection = True
        elif fault == "slow":
            step = max(1, len(reply) // 10)
            for start in range(0, len(reply), step):
                time.sleep(0.02)
                self.wfile.write(reply[start : start + step])
        else:
            self.wfile.write(reply)

    do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = handle_any

    def _body(self) -> bytes:
        if "chunked" in self.headers.get("Transfer-Encoding", ""):
            body = b""
            while size := int(self.rfile.readline().split(b";")[0], 16):
                body += self.rfile.read(size)
                self.rfile.readline()
            while self.rfile.readline().strip():
                pass
            return body
        return self.rfile.read(int(self.headers.get("Content-Length") or 0))

    def _forwarded(self, body: bytes) -> tuple[int, list[tuple[str, str]], bytes]:
        connection = http.client.HTTPConnection("127.0.0.1", self.proxy.upstream.port, timeout=240)
        with contextlib.closing(connection):
            headers = {n: v for n, v in self.headers.items() if n.lower() not in ("transfer-encoding", "expect")}
            headers["Content-Length"] = str(len(body))
            connection.request(self.command, self.path, body, headers)
            response = connection.getresponse()
            return response.status, response.getheaders(), response.read()

    def _refuse(self, status: int, code: str) -> None:
        text = f"<?xml version='1.0'?><Error><Code>{code}</Code><Message>planted</Message></Error>".encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/xml")
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(text)

    def _reset(self) -> None:
        self.close_connection = True
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.connection.close()

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def s3_proxy(s3_server: Server) -> Iterator[FaultyProxy]:
    proxy = FaultyProxy(s3_server)
    yield proxy
    proxy.close()
