"""The actor that serves the datasets of a run: it has plans run, has blocks cut, and tells each worker where its rows
lie. The rows themselves never come here.

It is made by whoever drives the run, and ends with that. Its state are the passes that are under way: should its
process be lost, it begins anew with none, and so does the next attempt of the workers.
"""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import os
import secrets
import tempfile
import time
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import cloudpickle
import msgspec

from paceline._core.errors import DataError
from paceline._engine.ray.connect import imported
from paceline._engine.ray.travel import Kit, lacking, settle
from paceline.data.context import DataContext
from paceline.data.exec.ray.asked import Opened, Told, failed
from paceline.data.exec.ray.blocks import Placed
from paceline.data.exec.ray.carry import Carried, have_modules
from paceline.data.exec.ray.cut import cut
from paceline.data.exec.ray.near import Near
from paceline.data.exec.ray.sharing import PATIENCE_S, SHARED_PATIENCE_S, Pass, Taker
from paceline.data.exec.ray.supply import Supply, pieces_of
from paceline.data.parts import Dealt, Span


@dataclass(eq=False)
class _Member:
    """A worker that takes from a pass."""

    name: str
    running: _Running
    taker: Taker
    news: asyncio.Event = field(default_factory=asyncio.Event)


@dataclass(eq=False)
class _Running:
    """A pass under way."""

    asked: Opened
    state: Pass
    members: set[_Member] = field(default_factory=set)
    changed: asyncio.Event = field(default_factory=asyncio.Event)
    """Something that decides whether to go on."""
    failed: Told | None = None
    task: asyncio.Task[None] | None = None

    def tell(self) -> None:
        for member in self.members:
            member.news.set()


class RowService:
    """The actor. A worker calls `open`, then `take` and `passed` again and again, then `leave`."""

    def __init__(self, token: str, plans: Carried, context: DataContext, kit: bytes, files: Any) -> None:
        self._token = token
        _settle(msgspec.msgpack.decode(kit, type=Kit), files)
        self._datasets = {name: Supply(plan) for name, plan in plans.value().items()}
        self._limit = _budget(context) // 2
        # The other half is for what runs ahead of the cutting.
        limits = replace(context.execution_options.resource_limits, object_store_memory=float(self._limit))
        options = replace(context.execution_options, resource_limits=limits)
        DataContext._current = replace(context, execution_options=options)
        self._running: list[_Running] = []
        self._members: dict[int, _Member] = {}
        self._numbers = count(secrets.randbits(48))  # none of those that were given before a loss of this process
        self._attempt = 0
        self._peak = 0
        self._said: asyncio.Queue[str] = asyncio.Queue()
        self._was_said: set[str] = set()
        self._cut = imported().remote(cut)

    # What workers ask

    async def known(self, token: str, attempt: int, name: str, what: str) -> tuple[bytes, bytes]:
        """A fact of a dataset as a pickle; else why it is not to be had, and the exception."""
        self._check(token)
        self._come_to(attempt)
        try:
            dataset = self._dataset(name)
            if what == "stats":
                return cloudpickle.dumps(dataset.record.seen(self._peak, self._limit)), b""
            return await dataset.known(what), b""
        except Exception as error:  # noqa: BLE001  who asked is told
            told = failed(error)
            return b"", msgspec.msgpack.encode(told)

    async def open(self, token: str, asked: bytes) -> int:
        """A number under which to take rows."""
        self._check(token)
        opened = msgspec.msgpack.decode(asked, type=Opened)
        self._come_to(opened.attempt)
        for number, member in self._members.items():
            if member.name == opened.name:
                return number
        running = self._joined(opened) or self._begun(opened)
        number = next(self._numbers)
        member = self._members[number] = _Member(opened.name, running, running.state.join(opened.rank))
        running.members.add(member)
        running.changed.set()
        return number

    async def take(self, token: str, number: int) -> tuple[bytes, list[Any]]:
        """What is new for a worker, once there is something, and references to its rows."""
        self._check(token)
        member = self._members.get(number)
        if member is None:
            return msgspec.msgpack.encode(failed(DataError("what this worker takes from has begun anew"))), []
        running, taker = member.running, member.taker
        began = time.monotonic()
        taker.asks = True
        running.changed.set()
        while not (taker.waiting or running.state.ended or running.failed or number not in self._members):
            member.news.clear()
            await member.news.wait()
        taker.asks = False
        pieces = running.state.tell(taker)
        if not pieces and running.failed is not None:
            return msgspec.msgpack.encode(running.failed), []
        dataset = self._dataset(running.asked.dataset)
        dataset.record.consumer_waited_s += time.monotonic() - began if taker.passed + len(pieces) == taker.told else 0
        shown = tuple((piece.unit, piece.offset, piece.num_rows, piece.whole) for piece in pieces)
        return msgspec.msgpack.encode(Told(shown, running.state.ended)), [piece.ref for piece in pieces]

    async def passed(self, token: str, number: int, num: int) -> None:
        """A worker is done with its first so many pieces."""
        self._check(token)
        if (member := self._members.get(number)) is not None:
            member.running.state.passed(member.taker, num)
            self._wake()

    async def leave(self, token: str, number: int) -> None:
        self._check(token)
        self._leave(number)

    async def said(self, token: str) -> str:
        """The next line that a person should see, once there is one: for who drives the run."""
        self._check(token)
        return await self._said.get()

    async def all_stats(self, token: str) -> bytes:
        """How all datasets go: for who drives the run."""
        self._check(token)
        found = {name: supply.record.seen(self._peak, self._limit) for name, supply in self._datasets.items()}
        # What was skipped may be much, and nobody asked for it.
        return msgspec.msgpack.encode({name: replace(stats, skipped=()) for name, stats in found.items()})

    async def seen(self, token: str) -> tuple[int, int, int]:
        """Bytes in flight now, at most so far, and how many passes are under way: for tests."""
        self._check(token)
        return self._in_flight, self._peak, len(self._running)

    def _check(self, token: str) -> None:
        if not hmac.compare_digest(token, self._token):
            raise PermissionError("these datasets belong to another run")

    def _come_to(self, attempt: int) -> None:
        """Who took rows in an earlier attempt is gone; and files may have changed since."""
        if attempt > self._attempt:
            self._attempt = attempt
            for number in list(self._members):
                self._leave(number)
            for dataset in self._datasets.values():
                dataset.facts.clear()

    def _dataset(self, name: str) -> Supply:
        if name not in self._datasets:
            known = ", ".join(map(repr, self._datasets)) or "none"
            raise KeyError(f"there is no dataset {name!r}; there are: {known}")
        return self._datasets[name]

    # Passes

    def _joined(self, asked: Opened) -> _Running | None:
        return next(
            (
                running
                for running in self._running
                if running.asked.rows == asked.rows and not running.failed and running.state.can_join(asked.rank)
            ),
            None,
        )

    def _begun(self, asked: Opened) -> _Running:
        # Where a pass over the same rows goes on without this worker, nobody else is to be waited for.
        is_late = any(running.asked.rows == asked.rows for running in self._running)
        ranks = [asked.rank] if is_late else range(asked.division.world)
        patience_s = SHARED_PATIENCE_S if asked.division.parts == 1 else PATIENCE_S
        running = _Running(asked, Pass(ranks, patience_s))
        self._running.append(running)
        running.task = asyncio.get_running_loop().create_task(self._run(running))
        return running

    def _leave(self, number: int) -> None:
        member = self._members.pop(number, None)
        if member is not None:
            member.running.members.discard(member)
            member.running.state.leave(member.taker, time.monotonic())
            member.news.set()
            self._wake()

    def _say(self, loop: asyncio.AbstractEventLoop, line: str) -> None:
        """In any thread. The same line once."""
        if line not in self._was_said:
            self._was_said.add(line)
            loop.call_soon_threadsafe(self._said.put_nowait, line)

    def _wake(self) -> None:
        for running in self._running:
            running.changed.set()

    @property
    def _in_flight(self) -> int:
        return sum(running.state.in_flight for running in self._running)

    async def _run(self, running: _Running) -> None:
        try:
            with ThreadPoolExecutor(1, "paceline-rows") as thread:
                await self._passed_over(running, partial(asyncio.get_running_loop().run_in_executor, thread))
            while not running.state.closed:
                await self._look(running)
        finally:
            self._running.remove(running)
            self._wake()

    async def _passed_over(self, running: _Running, in_thread: Any) -> None:
        """Go through the rows once, as far as there are workers that want them."""
        asked, state = running.asked, running.state
        dealt, uncut = Dealt(asked.division), deque[Placed | Near]()
        blocks: Iterator[Placed | Near] | None = None
        try:
            dataset, start = self._dataset(asked.dataset), asked.division.start
            pipeline = await dataset.pipeline(start.epoch)
            blocks = dataset.blocks(pipeline, start.unit, start.offset, partial(self._say, asyncio.get_running_loop()))
            while await self._goes_on(running):
                placed = await in_thread(next, blocks, None)
                if placed is None:
                    self._cut_up(running, uncut, dealt.end())
                    state.ended = True
                    running.tell()
                elif placed.num_rows:
                    state.came(placed.num_bytes)
                    self._peak = max(self._peak, self._in_flight)
                    uncut.append(placed)
                    self._cut_up(running, uncut, dealt.block(placed.num_rows))
        except Exception as error:  # noqa: BLE001  those who take the rows are told
            self._cut_up(running, uncut, dealt.end(broken=True))
            running.failed = failed(error)
            running.tell()
        finally:
            if blocks is not None:
                await in_thread(blocks.close)  # type: ignore[attr-defined]

    async def _goes_on(self, running: _Running) -> bool:
        """Wait until the next block is wanted; false if none will be."""
        while not (running.state.closed or running.state.ended):
            if running.state.wants_more(self._limit - self._in_flight, time.monotonic()):
                return True
            await self._look(running)
        return False

    async def _look(self, running: _Running) -> None:
        """Wait for something that may change what happens next."""
        after_s = running.state.look(time.monotonic())
        if not running.state.closed:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(running.changed.wait(), after_s)
        running.changed.clear()

    def _cut_up(self, running: _Running, uncut: deque[Placed | Near], spans: Sequence[Span]) -> None:
        """Have blocks cut of which it is certain whose their rows are, and tell who is waiting."""
        for span in spans:
            placed = uncut.popleft()
            running.state.cut(pieces_of(running.asked.division, span, placed, self._cut))
        running.tell()


def _settle(kit: Kit, files: bytes | list[Any]) -> None:
    """Have the modules and the directory of the driver here, and the modules in all processes that work for us."""
    missing = lacking(kit)
    settle(kit, missing, files if isinstance(files, bytes) else imported().get(files[0]) if missing else b"")
    unpacked_to = Path(tempfile.gettempdir(), f"paceline-{os.getuid()}", kit.parcel.digest)
    # Where a node lacks them, the workers there have unpacked them.
    roots = [(str(unpacked_to / str(number)), tree.root) for number, tree in enumerate(kit.parcel.trees)]
    have_modules(tuple(path for paths in roots for path in paths))


def _budget(context: DataContext) -> int:
    """Bytes in flight: what was asked for, or a quarter of the cluster's object stores."""
    limit = context.execution_options.resource_limits.object_store_memory
    if limit is not None:
        return int(limit)
    return int(imported().cluster_resources().get("object_store_memory", 0.0)) // 4
