"""A real browser that looks at a real dashboard of real runs.

`browser` and `shown` (a dashboard of finished runs) serve all tests of a module; `serve`, `look` and `going` are each
test's own. Whatever a page says on its console, an error or a breach of its policy, fails the test that looked at it.
"""

import contextlib
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from in_browser import make_runs

TOKEN = "a-token-for-tests-0123456789"
PATIENCE_MS = 20_000
FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-features=SpareRendererForSitePerProcess",
]


def _chromium() -> str:
    for name in ("chromium", "chromium-browser", "google-chrome", "chrome"):
        if (path := shutil.which(name)) is not None:
            return path
    why = "no Chromium is installed: `apt install chromium`, or a `chromium` on the path"
    if os.environ.get("PACELINE_NEED_BROWSER"):
        pytest.fail(why)
    pytest.skip(why)


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    # For a module and not for the session: what it runs on would be in the way of other tests' event loops.
    path = _chromium()
    sync_api = pytest.importorskip("playwright.sync_api")
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=FLAGS)
        # Its own helpers start with the first page, and stay.
        browser.new_page().close()
        yield browser
        browser.close()


@dataclass(frozen=True)
class Shown:
    """A dashboard, and the directory of which it shows the runs."""

    url: str
    root: Path

    def at(self, hash: str = "#/") -> str:
        return self.url + hash

    def asked(self, path: str) -> str:
        return self.url.partition("/?")[0] + path


@contextlib.contextmanager
def _served(root: Path, *options: str) -> Iterator[Shown]:
    command = [sys.executable, "-m", "paceline", "dashboard", str(root), "--port", "0", "--no-browser"]
    process = subprocess.Popen([*command, "--token", TOKEN, *options], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    with process, process.stdout:
        try:
            url = process.stdout.readline().strip()
            assert url.startswith("http://127.0.0.1:"), url
            yield Shown(url, root)
        finally:
            process.send_signal(signal.SIGINT)
            try:
                process.wait(20)
            finally:
                process.kill()


@pytest.fixture
def serve(request: pytest.FixtureRequest) -> Iterator[Callable[..., Shown]]:
    with contextlib.ExitStack() as stack:
        yield lambda root, *options: stack.enter_context(_served(root, *options))


@pytest.fixture(scope="module")
def serving() -> Iterator[Callable[..., Shown]]:
    """As `serve`, until the last test of a module."""
    with contextlib.ExitStack() as stack:
        yield lambda root, *options: stack.enter_context(_served(root, *options))


@pytest.fixture(scope="module")
def shown(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shown]:
    """Of three runs: `short`, `long` and `broken`, which failed in its second report."""
    root = tmp_path_factory.mktemp("runs")
    make_runs(root)
    with _served(root) as shown:
        yield shown


SCRIPT = """
import sys, time
from pathlib import Path
from paceline import train

root, gate = sys.argv[1:]

def work():
    for step in range(1, 1000):
        while not Path(gate, str(step)).exists():
            if Path(gate, "end").exists():
                return
            time.sleep(0.01)
        train.report({"loss": 1 / step, "eval": {"loss": 2 / step}})

train.DataParallelTrainer(
    work, scaling_config=train.ScalingConfig(1),
    run_config=train.RunConfig(name="live", storage_path=root),
).fit()
"""


@dataclass
class Going:
    """A run that goes on in a process of its own, step by step as it is told."""

    process: subprocess.Popen[bytes]
    gate: Path
    steps: int = 0

    def step(self, count: int = 1) -> None:
        for _ in range(count):
            self.steps += 1
            (self.gate / str(self.steps)).touch()

    def end(self) -> None:
        (self.gate / "end").touch()
        assert self.process.wait(30) == 0


@pytest.fixture
def going(tmp_path: Path) -> Iterator[Callable[[Path], Going]]:
    """Starts a run called `live` in a directory."""
    started: list[Going] = []

    def start(root: Path) -> Going:
        gate = tmp_path / "gate"
        gate.mkdir()
        script = tmp_path / "live.py"
        script.write_text(SCRIPT)
        run = Going(subprocess.Popen([sys.executable, str(script), str(root), str(gate)], cwd=tmp_path), gate)
        started.append(run)
        return run

    yield start
    for run in started:
        if run.process.poll() is None:
            (run.gate / "end").touch()
            try:
                run.process.wait(20)
            finally:
                run.process.kill()
                run.process.wait(20)


@dataclass
class Looks:
    """Opens pages, each in a profile of its own, and keeps what they complain about."""

    browser: Any
    contexts: list[Any] = field(default_factory=list)
    complaints: list[str] = field(default_factory=list)

    def __call__(
        self,
        url: str,
        width: int = 1280,
        height: int = 800,
        *,
        dark: bool = False,
        touch: bool = False,
        scale: float = 1,
    ) -> Any:
        context = self.browser.new_context(
            viewport={"width": width, "height": height},
            color_scheme="dark" if dark else "light",
            has_touch=touch,
            device_scale_factor=scale,
            accept_downloads=True,
            reduced_motion="reduce",
        )
        context.set_default_timeout(PATIENCE_MS)
        self.contexts.append(context)
        page = context.new_page()
        page.on("console", lambda said: said.type in ("error", "warning") and self.complaints.append(said.text))
        page.on("pageerror", lambda error: self.complaints.append(str(error)))
        page.on("dialog", lambda dialog: (self.complaints.append(f"a dialog: {dialog.message}"), dialog.dismiss()))
        page.goto(url)
        return page


@pytest.fixture
def look(browser: Any) -> Iterator[Looks]:
    looks = Looks(browser)
    yield looks
    for context in looks.contexts:
        context.close()
    assert looks.complaints == []
