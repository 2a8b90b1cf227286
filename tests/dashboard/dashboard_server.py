"""A dashboard in a process of its own, a client for it, and runs that a test writes."""

import contextlib
import signal
import ssl
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import msgspec

from paceline._control.events import DiagnosticFileWritten, RankUsage, UsageMeasured
from paceline._engine.messages import GpuUsage
from written_runs import WrittenRun, ended, report, started

TOKEN = "0123456789abcdef-the-token"
BEGAN = 1_700_000_000.0
PATIENCE_S = 60.0
_NO_TLS = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
"""Without the certificates of the world, which take longer to load than a test."""

SERVE = """
import sys
from paceline._commands.searches import open_search
from paceline._dashboard.serve import serve
root, token, control, host = sys.argv[1:]
sys.exit(serve(root, open_search, host=host, port=0, token=token, control=control == "control", open_browser=False))
"""


@dataclass(frozen=True)
class Dashboard:
    process: subprocess.Popen[str]
    url: str
    errors: Path
    clients: contextlib.ExitStack = field(default_factory=contextlib.ExitStack)

    @property
    def base(self) -> str:
        return self.url.partition("/?")[0]

    @property
    def port(self) -> int:
        return int(self.base.rpartition(":")[2])

    def client(self, token: str | None = TOKEN, **headers: str) -> httpx.Client:
        given = {"Authorization": f"Bearer {token}"} if token else {}
        client = httpx.Client(
            base_url=self.base, headers={**given, **headers}, timeout=PATIENCE_S, trust_env=False, verify=_NO_TLS
        )
        return self.clients.enter_context(client)

    def interrupt(self) -> int:
        """Press Ctrl-C, which it has to obey whoever is connected, and return its exit code."""
        self.process.send_signal(signal.SIGINT)
        return self.process.wait(PATIENCE_S)


@contextlib.contextmanager
def dashboard(
    root: Path | str, scratch: Path, *, control: bool = False, host: str = "127.0.0.1", fault: str = ""
) -> Iterator[Dashboard]:
    """`fault`: what is run in it before it serves."""
    arguments = [str(root), TOKEN, "control" if control else "", host]
    command = [sys.executable, "-c", fault + SERVE, *arguments]
    errors = scratch / "dashboard.err"
    with errors.open("wb") as err:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=err, text=True)
    assert process.stdout is not None
    with process, process.stdout:
        try:
            url = process.stdout.readline().strip()
            assert url, errors.read_text()
            found = Dashboard(process, url, errors)
            with found.clients:
                yield found
        finally:
            if process.poll() is None:
                process.kill()


class Events:
    """What a page hears: `event` and its data, one after the other."""

    def __init__(self, response: httpx.Response) -> None:
        self._lines = response.iter_lines()

    def next(self, wanted: str, until: Callable[[Any], bool] = lambda data: True) -> Any:
        """The data of the next event of this name for which `until` holds."""
        name = ""
        for line in self._lines:
            if line.startswith("event: "):
                name = line.removeprefix("event: ")
            elif line.startswith("data: ") and name == wanted:
                data = msgspec.json.decode(line.removeprefix("data: "))
                if until(data):
                    return data
        raise AssertionError(f"the events ended without the {wanted} that was waited for")


@contextlib.contextmanager
def events(client: httpx.Client, run: str | None = None) -> Iterator[Events]:
    with client.stream("GET", "/api/events", params={"run": run} if run else {}) as response:
        assert response.status_code == 200
        assert response.headers["content-type"] == "text/event-stream"
        yield Events(response)


class Run(WrittenRun):
    """A run that a test writes, event by event."""

    def __init__(self, root: Path) -> None:
        super().__init__(root, *started(at=BEGAN))
        self.at = BEGAN
        self.num_reports = 0

    def report(self, metrics: dict[str, Any]) -> "Run":
        self.num_reports += 1
        self.at += 1.0
        self.write(report(self.num_reports, metrics, at=self.at))
        return self

    def measure(self) -> "Run":
        for cpu_s in (1.0, 3.0):
            self.at += 2.0
            use = RankUsage(0, cpu_s, 123_000_000, (GpuUsage(0, 5, 10, 0.5),), cpu_s + 1, pid=100, host="here")
            self.write(UsageMeasured(1, self.at, (use,)))
        return self

    def list_file(self, path: str, kind: Any = "flame") -> "Run":
        self.write(DiagnosticFileWritten(kind, path, 0, self.at, 1.0))
        return self

    def file(self, path: str, text: str) -> "Run":
        (self.root / path).parent.mkdir(parents=True, exist_ok=True)
        (self.root / path).write_text(text)
        return self

    def end(self) -> "Run":
        self.write(*ended(num_reports=self.num_reports, at=self.at + 1))
        return self
