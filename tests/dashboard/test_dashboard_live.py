"""What the open pages cost and are told: read once for all, nothing kept for the slow, mistakes not shown."""

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from served import PATIENCE_S, Run

from paceline._dashboard import live as live_module
from paceline._dashboard.answers import detail_of
from paceline._dashboard.asked import Refused
from paceline._dashboard.live import MOST_FOLLOWERS, Live
from paceline._dashboard.reading import OFTEN_S, SELDOM_S, Reading, pause_s
from paceline._view.listing import Listing


class Counted(Listing):
    """How often it was asked for what."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.calls: Counter[str] = Counter()

    def refresh(self) -> set[str]:
        self.calls["refresh"] += 1
        return super().refresh()

    def summaries(self) -> Any:
        self.calls["summaries"] += 1
        return super().summaries()


class Page:
    """The other end of a connection for events."""

    def __init__(self) -> None:
        self.gone = asyncio.Event()
        self.reads = asyncio.Event()
        self.reads.set()
        self.sent = b""
        self.news = asyncio.Event()

    async def receive(self) -> dict[str, Any]:
        await self.gone.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: Any) -> None:
        await self.reads.wait()
        self.sent += message.get("body", b"")
        self.news.set()

    async def has(self, text: bytes, times: int = 1) -> None:
        async with asyncio.timeout(PATIENCE_S):
            while self.sent.count(text) < times:
                self.news.clear()
                await self.news.wait()


def followed(root: Path, story: Callable[[Live, Counted], Coroutine[Any, Any, None]]) -> None:
    """Something that happens while a `Live` of the runs below a path is at work."""

    async def played() -> None:
        listing = Counted(root)
        reading = Reading(lambda: listing)
        live = Live(reading)
        task = asyncio.create_task(live.run())
        try:
            async with asyncio.timeout(2 * PATIENCE_S):
                await story(live, listing)
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            reading.close()

    asyncio.run(played())


def follow(live: Live, page: Page, run: str | None = None) -> asyncio.Task[None]:
    return asyncio.create_task(live.follow(run, page.receive, page.send))


def test_many_pages_cost_no_more_reading_than_one(tmp_path: Path) -> None:
    run = Run(tmp_path / "a").report(loss=1.0)

    async def story(live: Live, listing: Counted) -> None:
        pages = [Page() for _ in range(30)]
        tasks = [follow(live, page, "a") for page in pages]
        for page in pages:
            await page.has(b'"last":1}')
        listing.calls.clear()
        run.report(loss=0.5)
        for page in pages:
            await page.has(b'"last":2}')
        # One that reads what is new, and perhaps one that was about to when it was written.
        assert listing.calls["refresh"] <= 2
        assert listing.calls["summaries"] <= 2
        for page in pages:
            page.gone.set()
        await asyncio.gather(*tasks)

    followed(tmp_path, story)
    run.leave()


def test_nothing_is_read_while_nobody_looks(tmp_path: Path) -> None:
    async def story(live: Live, listing: Counted) -> None:
        page = Page()
        task = follow(live, page)
        await page.has(b"event: runs")
        page.gone.set()
        await task
        async with asyncio.timeout(10):
            listing.calls["under way"] += 1
            while listing.calls:
                listing.calls.clear()
                await asyncio.sleep(2 * OFTEN_S)

    followed(tmp_path, story)


def test_a_slow_page_is_told_what_holds_and_not_all_that_happened(tmp_path: Path) -> None:
    run = Run(tmp_path / "a").report(loss=1.0)

    async def story(live: Live, listing: Counted) -> None:
        slow, quick = Page(), Page()
        tasks = [follow(live, slow, "a"), follow(live, quick, "a")]
        await slow.has(b'"last":1}')
        slow.reads.clear()
        for last in range(2, 6):
            run.report(loss=1.0)
            await quick.has(b'"last":%d}' % last)
        slow.reads.set()
        await slow.has(b'"last":5}')
        # At most the one that it was being told when it stopped reading lies in between.
        assert slow.sent.count(b"event: points") <= 3 < quick.sent.count(b"event: points")
        slow.gone.set()
        quick.gone.set()
        await asyncio.gather(*tasks)

    followed(tmp_path, story)
    run.leave()


def test_a_page_that_does_not_read_is_let_go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live_module, "PATIENCE_S", 0.2)
    run = Run(tmp_path / "a").report(loss=1.0)

    async def story(live: Live, listing: Counted) -> None:
        page = Page()
        task = follow(live, page, "a")
        await page.has(b'"last":1}')
        page.reads.clear()
        run.report(loss=1.0)
        await asyncio.wait_for(task, PATIENCE_S)

    followed(tmp_path, story)
    run.leave()


def test_a_page_that_hears_nothing_is_shown_that_somebody_is_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live_module, "ALIVE_S", 0.1)

    async def story(live: Live, listing: Counted) -> None:
        page = Page()
        task = follow(live, page)
        await page.has(b"\n\n: still here\n\n", times=2)
        page.gone.set()
        await task

    followed(tmp_path, story)


def test_a_page_of_a_run_that_is_not_there_waits_for_it(tmp_path: Path) -> None:
    async def story(live: Live, listing: Counted) -> None:
        page, other = Page(), Page()
        tasks = [follow(live, page, "later"), follow(live, other)]
        await page.has(b"event: runs")
        await other.has(b"event: runs")
        Run(tmp_path / "another").report(loss=1.0).end()
        await other.has(b'"another"')
        assert page.sent.count(b"\n\n") <= 3
        Run(tmp_path / "later").report(loss=1.0).end()
        await page.has(b'"last":1}')
        live.close()
        await asyncio.gather(*tasks)

    followed(tmp_path, story)


def test_what_was_read_for_somebody_else_is_told_all_the_same(tmp_path: Path) -> None:
    run = Run(tmp_path / "a").report(loss=1.0)

    async def story(live: Live, listing: Counted) -> None:
        page = Page()
        task = follow(live, page, "a")
        await page.has(b'"last":1}')
        run.report(loss=0.7)
        await page.has(b'"last":2}')
        # Who asks for a run that is not known has the listing look again, also where what there is is not old.
        live._reading._old_at = time.monotonic() + 2.0
        run.report(loss=0.5)
        with pytest.raises(Refused):
            await live._reading.ask(lambda listing: detail_of(listing, "nothing"))
        await page.has(b'"last":3}')
        live.close()
        await task

    followed(tmp_path, story)
    run.leave()


def test_there_may_be_so_many_pages_and_no_more(tmp_path: Path) -> None:
    async def story(live: Live, listing: Counted) -> None:
        pages = [Page() for _ in range(MOST_FOLLOWERS)]
        tasks = [follow(live, page) for page in pages]
        for page in pages:
            await page.has(b"event: runs")
        with pytest.raises(Refused, match="64 pages"):
            await follow(live, Page())
        live.close()
        await asyncio.gather(*tasks)

    followed(tmp_path, story)


class Broken(Listing):
    """Fails as long as it is told to."""

    fails = True

    def refresh(self) -> set[str]:
        if self.fails:
            raise RuntimeError("a secret of ours")
        return super().refresh()


def test_what_fails_is_said_once_and_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(live_module, "SELDOM_S", 0.05)
    listing = Broken(tmp_path)
    listing.fails = False
    run = Run(tmp_path / "a").report(loss=1.0)

    async def played() -> None:
        reading = Reading(lambda: listing)
        live = Live(reading)
        task = asyncio.create_task(live.run())
        page = Page()
        followed = follow(live, page, "a")
        await page.has(b'"last":1}')
        listing.fails = True
        await asyncio.sleep(3 * OFTEN_S)
        listing.fails = False
        run.report(loss=1.0)
        await page.has(b'"last":2}')
        page.gone.set()
        await followed
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        reading.close()

    asyncio.run(played())
    run.leave()
    assert [record.levelno for record in caplog.records if record.name == "paceline"] == [logging.ERROR]


@settings(deadline=None)
@given(st.floats(0, 1000), st.floats(0.001, 1))
def test_what_is_done_again_and_again_takes_a_small_part_of_a_core(cost_s: float, share: float) -> None:
    pause = pause_s(cost_s, share)
    assert OFTEN_S <= pause <= SELDOM_S
    assert pause == SELDOM_S or cost_s / (cost_s + pause) <= share


def test_a_page_is_made_to_ask_less_often_for_plots_that_cost_much(tmp_path: Path) -> None:
    run = Run(tmp_path / "a").report(loss=1.0)

    async def story(live: Live, listing: Counted) -> None:
        live.points_cost("a", 1000.0)
        page = Page()
        task = follow(live, page, "a")
        await page.has(b'"last":1}')
        run.report(loss=0.5)
        # The run itself is told; of its points, not before some seconds are over.
        await page.has(b'"num_reports":2', times=2)
        assert page.sent.count(b"event: points") == 1
        live.close()
        await task

    followed(tmp_path, story)
    run.leave()
