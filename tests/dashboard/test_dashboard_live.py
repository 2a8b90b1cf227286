"""What open pages cost and are sent: read once for all, nothing kept for the slow, errors not shown."""

import asyncio
import functools
import logging
import time
from collections import Counter

import pytest
from dashboard_server import PATIENCE_S, Run
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline._commands.searches import open_search
from paceline._dashboard import live_updates as live_module
from paceline._dashboard.answers import get_detail
from paceline._dashboard.listing_thread import MAX_PAUSE_S, MIN_PAUSE_S, ListingThread, compute_pause_s
from paceline._dashboard.live_updates import MAX_FOLLOWERS, LiveUpdates
from paceline._dashboard.query_fields import RequestRefusedError
from paceline._view.listing import Listing


class CountingListing(Listing):
    """Counts its calls, and fails while it is asked to."""

    def __init__(self, root):
        super().__init__(root, open_search)
        self.calls: Counter[str] = Counter()
        self.fails = False

    def refresh(self):
        self.calls["refresh"] += 1
        if self.fails:
            raise RuntimeError("a secret of ours")
        return super().refresh()


class Page:
    """The other end of a connection for events."""

    def __init__(self, live, run):
        self.gone = asyncio.Event()
        self.reads = asyncio.Event()
        self.reads.set()
        self.sent = b""
        self.news = asyncio.Event()
        self.task = asyncio.create_task(live.follow_page(run, self.receive, self.send))

    async def receive(self):
        await self.gone.wait()
        return {"type": "http.disconnect"}

    async def send(self, message):
        await self.reads.wait()
        self.sent += message.get("body", b"")
        self.news.set()

    async def wait_for(self, text, times=1):
        async with asyncio.timeout(PATIENCE_S):
            while self.sent.count(text) < times:
                self.news.clear()
                await self.news.wait()


class Scene:
    """A `Live` at work on the runs below a path, and the pages that are open."""

    def __init__(self, root):
        self.root = root
        self.listing = CountingListing(root)
        self.reading = ListingThread(lambda: self.listing)
        self.live = LiveUpdates(self.reading)
        self.pages: list[Page] = []

    def start_run(self, name):
        """A run with one report."""
        return Run(self.root / name).report({"loss": 1.0})

    def open_page(self, run=None):
        self.pages.append(Page(self.live, run))
        return self.pages[-1]

    async def run_scenario(self, scenario):
        task = asyncio.create_task(self.live.run())
        try:
            await scenario
            self.live.close()
            await asyncio.gather(*(page.task for page in self.pages))
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            self.reading.close()


def beside_live_updates(test):
    """Runs a test while the scene's `LiveUpdates` is at work, and lets all pages go in the end."""

    @functools.wraps(test)
    def run(scene, **fixtures):
        asyncio.run(scene.run_scenario(test(scene, **fixtures)))

    return run


@pytest.fixture
def scene(tmp_path):
    return Scene(tmp_path)


@beside_live_updates
async def test_many_pages_cost_no_more_reading_than_one(scene, monkeypatch):
    details = []
    monkeypatch.setattr(live_module, "get_detail", lambda *args: details.append(1) or get_detail(*args))
    run = scene.start_run("a")
    pages = [scene.open_page("a") for _ in range(30)]
    for page in pages:
        await page.wait_for(b'"last":1}')
    while "a" not in scene.live._watched:
        await asyncio.sleep(0.01)
    details.clear()
    run.report({"loss": 0.5})
    for page in pages:
        await page.wait_for(b'"last":2}')
    assert len(details) == 1


@beside_live_updates
async def test_nothing_is_read_while_nobody_looks(scene):
    page = scene.open_page()
    await page.wait_for(b"event: runs")
    page.gone.set()
    await page.task
    scene.listing.calls["under way"] += 1
    while scene.listing.calls:
        scene.listing.calls.clear()
        await asyncio.sleep(2 * MIN_PAUSE_S)


@beside_live_updates
async def test_a_slow_page_is_sent_what_holds_and_not_all_that_happened(scene):
    run = scene.start_run("a")
    slow, quick = scene.open_page("a"), scene.open_page("a")
    await slow.wait_for(b'"last":1}')
    slow.reads.clear()
    for last in range(2, 6):
        run.report({"loss": 1.0})
        await quick.wait_for(b'"last":%d}' % last)
    slow.reads.set()
    await slow.wait_for(b'"last":5}')
    # At most the one that was being sent when it stopped reading lies in between.
    assert slow.sent.count(b"event: points") <= 3 < quick.sent.count(b"event: points")


@beside_live_updates
async def test_a_page_that_does_not_read_is_let_go(scene, monkeypatch):
    monkeypatch.setattr(live_module, "SEND_TIMEOUT_S", 0.2)
    run = scene.start_run("a")
    page = scene.open_page("a")
    await page.wait_for(b'"last":1}')
    page.reads.clear()
    run.report({"loss": 1.0})
    await page.task


@beside_live_updates
async def test_a_page_without_news_is_sent_a_sign_of_life(scene, monkeypatch):
    monkeypatch.setattr(live_module, "KEEPALIVE_S", 0.1)
    await scene.open_page().wait_for(b"\n\n: still here\n\n", times=2)


@beside_live_updates
async def test_what_was_read_for_another_question_reaches_the_page_all_the_same(scene):
    page = scene.open_page("a")
    await page.wait_for(b"event: runs")
    run = scene.start_run("a")  # The page waits for a run that is not there yet.
    await page.wait_for(b'"last":1}')
    run.report({"loss": 0.7})
    await page.wait_for(b'"last":2}')
    # A question for an unknown run makes the listing look again, also where what there is is not old.
    scene.reading._stale_at = time.monotonic() + 2.0
    run.report({"loss": 0.5})
    with pytest.raises(RequestRefusedError):
        await scene.reading.query(lambda listing: get_detail(listing, "nothing"))
    await page.wait_for(b'"last":3}')


@beside_live_updates
async def test_the_number_of_open_pages_is_limited(scene):
    for page in [scene.open_page() for _ in range(MAX_FOLLOWERS)]:
        await page.wait_for(b"event: runs")
    with pytest.raises(RequestRefusedError, match="64 pages"):
        await Page(scene.live, None).task


@beside_live_updates
async def test_a_failure_to_read_is_logged_once_and_tried_again(scene, monkeypatch, caplog):
    monkeypatch.setattr(live_module, "MAX_PAUSE_S", 0.05)
    run = scene.start_run("a")
    page = scene.open_page("a")
    await page.wait_for(b'"last":1}')
    scene.listing.fails = True
    scene.listing.calls.clear()
    while scene.listing.calls["refresh"] < 3:
        await asyncio.sleep(0.01)
    scene.listing.fails = False
    run.report({"loss": 1.0})
    await page.wait_for(b'"last":2}')
    assert [record.levelno for record in caplog.records if record.name == "paceline"] == [logging.ERROR]


@settings(deadline=None)
@given(st.floats(0, 1000), st.floats(0.001, 1))
def test_repeated_work_takes_a_small_part_of_a_core(cost_s, share):
    pause = compute_pause_s(cost_s, share)
    assert MIN_PAUSE_S <= pause <= MAX_PAUSE_S
    assert pause == MAX_PAUSE_S or cost_s / (cost_s + pause) <= share


@beside_live_updates
async def test_a_page_asks_less_often_for_plots_that_cost_much(scene, monkeypatch):
    monkeypatch.setattr(live_module, "compute_pause_s", lambda cost_s, share: 600.0 if cost_s else MIN_PAUSE_S)
    run = scene.start_run("a")
    scene.live.record_points_cost("a", 1000.0)
    page = scene.open_page("a")
    await page.wait_for(b'"last":1}')
    run.report({"loss": 0.5})
    # The run itself is sent; of its points, nothing before the pause is over.
    await page.wait_for(b'"num_reports":2', times=2)
    assert page.sent.count(b"event: points") == 1
