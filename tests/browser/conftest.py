"""A real browser that looks at a real dashboard of real runs.

`browser` and `shown` (a dashboard of finished runs) serve all tests of a module; `serve`, `look` and `going` each test.
Any error or warning on a page's console, such as a breach of its policy, fails the test that looked at it.
"""

import contextlib
import os
import shutil
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from browser_runs import Going, make_curves, start

sys.path.append(str(Path(__file__).parents[1] / "dashboard"))
from dashboard_server import dashboard

collect_ignore = [] if os.environ.get("PACELINE_SCREENSHOTS") else ["test_screenshots.py"]

PATIENCE_MS = 60_000
FLAGS = [
    *("--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking"),
    *("--disable-component-update", "--disable-sync", "--disable-features=SpareRendererForSitePerProcess"),
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


def _serving(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., Shown]]:
    with contextlib.ExitStack() as stack:

        def serve(root: Path, *, control: bool = False) -> Shown:
            served = dashboard(root, tmp_path_factory.mktemp("dashboard"), control=control)
            return Shown(stack.enter_context(served).url, root)

        yield serve


serve = pytest.fixture(_serving)
serving = pytest.fixture(_serving, scope="module")
"""As `serve`, until the last test of a module."""


@pytest.fixture(scope="session")
def finished_runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of three runs: `short`, `long` and `broken`, which failed in its second report."""
    root = tmp_path_factory.mktemp("runs")
    make_curves(root)
    return root


@pytest.fixture(scope="module")
def shown(finished_runs: Path, serving: Callable[..., Shown]) -> Shown:
    return serving(finished_runs)


@pytest.fixture
def going(tmp_path: Path) -> Iterator[Callable[..., Going]]:
    """Starts a run in a directory: `live` or `working`."""
    started: list[Going] = []

    def begin(root: Path, name: str = "live") -> Going:
        started.append(start(name, root, tmp_path))
        return started[-1]

    yield begin
    for run in started:
        (run.gate / "end").touch()
        if run.process.poll() is None and "working" in run.gate.name:
            run.process.terminate()
        try:
            run.process.wait(60)
        finally:
            run.process.kill()


@dataclass
class Looks:
    """Opens pages, each in a profile of its own, and keeps what they complain about."""

    browser: Any
    contexts: list[Any] = field(default_factory=list)
    complaints: list[str] = field(default_factory=list)

    def __call__(
        self, url: str, width: int = 1280, height: int = 800, *, dark: bool = False, touch: bool = False
    ) -> Any:
        context = self.browser.new_context(
            viewport={"width": width, "height": height},
            color_scheme="dark" if dark else "light",
            has_touch=touch,
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
