"""How fast does a run with 1,000,000 points open? And how much does an open page slow down a run that reports?

The first: a newly started server answers all requests of the page for the run and the plots of all its metrics; the
time to the last byte, and the server's peak memory. The second: a worker computes and reports 10,000 times a second,
in turns with and without a page that listens to events and requests all plots whenever there are new points, at most
twice a second. Both turns belong to the same run.
"""

from __future__ import annotations

import argparse
import contextlib
import http.client
import os
import re
import signal
import socket
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TextIO
from urllib.parse import urlencode

import msgspec
import psutil
from _journals import write_run
from _measure import Bar, Bench, Measure, Process, Report, check, main, note, python

RATE = 10_000
STARTS_S, ANSWERS_S, TURN_S = 60.0, 60.0, 300.0
_ADDRESS = re.compile(r"http://127\.0\.0\.1:(\d+)/\?token=(\S+)")


def measure(bench: Bench) -> Report:
    timings = [_open_long_run(bench) for _ in bench.rounds()]
    turns = _take_turns(bench)
    return Report(
        [
            Measure(
                f"open a run of {bench.options.points:,} points", "s", [one.seconds for one in timings], {}, Bar("<", 2)
            ),
            Measure("peak of the server", "MB", [one.peak_mb for one in timings], {}, Bar("<", 200)),
            Measure(
                f"steps at {RATE:,} reports/s with the page open",
                "/s",
                turns.with_page,
                {"without": turns.without},
                Bar(">=", 0.99, ratio=True),
            ),
        ],
        {
            "processor time to start and open": note([one.cpu_s for one in timings], "s"),
            "slow-down in neighbouring turns": note(turns.slow_downs(), "%"),
            "server's share of a core": note(turns.shares, "%"),
            "the page got": f"{turns.num_events:,} events and {turns.num_answers:,} answers",
        },
    )


# Opening a long run


@dataclass(frozen=True)
class LongRunTimes:
    seconds: float
    peak_mb: float
    cpu_s: float
    """Of the server, its start included. Steadier than seconds on a busy machine."""


def _open_long_run(bench: Bench) -> LongRunTimes:
    directory = bench.directory("long")
    num_metrics = bench.options.metrics
    write_run(directory / "long", bench.options.points // num_metrics, num_metrics)
    with _server(bench, directory) as server:
        began = time.perf_counter()
        for path in ("/", "/app.css", "/app.js", "/api/about", "/api/runs", "/api/run?run=long"):
            server.get(path)
        plots = msgspec.json.decode(server.get("/api/metrics?run=long"))
        seconds = time.perf_counter() - began
        cpu_s = server.cpu_s()
        peak = re.search(r"VmHWM:\s+(\d+) kB", Path(f"/proc/{server.pid}/status").read_text())
    check(peak is not None, "/proc does not report the peak memory of the server")
    assert peak is not None
    num_points = sum(one["num_points"] for one in plots["series"])
    check(num_points == bench.options.points, f"the page received {num_points:,} points of {bench.options.points:,}")
    return LongRunTimes(seconds, int(peak[1]) / 1000, cpu_s)


# A live run, with and without a page


@dataclass
class Turns:
    with_page: list[float] = field(default_factory=list)
    """Steps a second."""
    without: list[float] = field(default_factory=list)
    shares: list[float] = field(default_factory=list)
    num_events: int = 0
    num_answers: int = 0

    def slow_downs(self) -> list[float]:
        return [100 * (1 - a / b) for a, b in zip(self.with_page, self.without, strict=True)]


def _take_turns(bench: Bench) -> Turns:
    turns = Turns()
    directory = bench.directory("live")
    count = int(RATE * bench.options.seconds)
    with _server(bench, directory) as server, _start_training(bench, directory) as line:
        bench.log(f"a step is {int(line.readline()):,} turns of an empty loop and a report")
        for number in range(bench.options.turns):
            # On, off, off, on: a drift affects both equally.
            for is_on in (True, False) if number % 2 else (False, True):
                page = _Page(server) if is_on else None
                before, began = server.cpu_s(), time.perf_counter()
                rate = count / _turn(line, count)
                if page is None:
                    turns.without.append(rate)
                    continue
                turns.with_page.append(rate)
                turns.shares.append(100 * (server.cpu_s() - before) / (time.perf_counter() - began))
                turns.num_events += page.num_events
                turns.num_answers += page.num_answers
                page.close()
                check(page.num_events > 0 and page.num_answers > 0, "the page received nothing about the run")
        line.write("0\n")
        line.flush()
    return turns


def _turn(line: TextIO, count: int) -> float:
    line.write(f"{count}\n")
    line.flush()
    return float(line.readline())


@contextlib.contextmanager
def _start_training(bench: Bench, directory: Path) -> Iterator[TextIO]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(STARTS_S)
        command = python("ours/dashboard.py", directory, listener.getsockname()[1], RATE)
        with bench.start(command, bench.directory("training")) as process:
            try:
                end, _ = listener.accept()
            except TimeoutError:
                raise process.problem(f"did not start training within {STARTS_S:.0f} s") from None
            with end:
                end.settimeout(TURN_S)
                with end.makefile("rw") as line:
                    yield line
                process.wait(TURN_S)


class _Page:
    """An open page: it reads events and requests all plots when there are new points."""

    def __init__(self, server: _Server) -> None:
        self.num_events = self.num_answers = 0
        self._server = server
        self._closed = False
        self._points = threading.Event()
        self._stream = server.connection()
        self._stream.request("GET", "/api/events?run=live", headers=server.headers)
        self._answer = self._stream.getresponse()
        check(self._answer.status == 200, f"events were answered with {self._answer.status}")
        self._threads = [threading.Thread(target=self._read_events), threading.Thread(target=self._fetch_plots)]
        for thread in self._threads:
            thread.start()

    def close(self) -> None:
        self._closed = True
        self._points.set()
        with contextlib.suppress(OSError):
            assert self._stream.sock is not None
            self._stream.sock.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join()
        self._stream.close()

    def _read_events(self) -> None:
        with contextlib.suppress(OSError, ValueError, http.client.HTTPException):
            while line := self._answer.readline():
                self.num_events += line.startswith(b"event:")
                if line.startswith(b"event: points"):
                    self._points.set()

    def _fetch_plots(self) -> None:
        query = urlencode({"run": "live", "points": 1000})
        while not self._closed:
            self._points.wait()
            self._points.clear()
            self._server.get(f"/api/metrics?{query}")
            self.num_answers += 1


# The server


@dataclass
class _Server:
    process: Process
    port: int
    token: str

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def headers(self) -> dict[str, str]:
        return {"Authorization": f"Bearer {self.token}", "Accept-Encoding": "gzip"}

    def connection(self) -> http.client.HTTPConnection:
        return http.client.HTTPConnection("127.0.0.1", self.port, timeout=ANSWERS_S)

    def get(self, path: str) -> bytes:
        import gzip

        connection = self.connection()
        connection.request("GET", path, headers=self.headers)
        answer = connection.getresponse()
        data = answer.read()
        connection.close()
        check(answer.status == 200, f"{path} was answered with {answer.status}: {data[:300]!r}")
        return gzip.decompress(data) if answer.headers.get("Content-Encoding") == "gzip" else data

    def cpu_s(self) -> float:
        times = psutil.Process(self.pid).cpu_times()
        return float(times.user + times.system)


@contextlib.contextmanager
def _server(bench: Bench, directory: Path) -> Iterator[_Server]:
    scratch = bench.directory("server")
    with bench.start(python("ours/dashboard_serve.py", directory), scratch) as process:
        end = time.monotonic() + STARTS_S
        while (address := _ADDRESS.search((scratch / "output.log").read_text())) is None:
            check(time.monotonic() < end, "the dashboard did not print its address")
            time.sleep(0.005)
        yield _Server(process, int(address[1]), address[2])
        os.kill(process.pid, signal.SIGINT)
        process.wait(ANSWERS_S)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--points", type=int, default=1_000_000, help="points of the long run (default 1,000,000)")
    parser.add_argument("--metrics", type=int, default=4, help="metrics of the long run (default 4)")
    parser.add_argument("--turns", type=int, default=10, help="turns with and without a page (default 10)")
    parser.add_argument("--seconds", type=float, default=5, help="seconds of a turn (default 5)")


if __name__ == "__main__":
    main("dashboard", measure, repeats=3, add_arguments=add_arguments)
