"""Where an iterator gets the rows of an epoch from: run for it alone, or shared with the other workers of a group."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from paceline.data.block import Schema
from paceline.data.context import DataContext
from paceline.data.exec.inline import InlineExecutor
from paceline.data.exec.lower import Facts, lowered_for, outline
from paceline.data.exec.pipeline import Executor, Pipeline
from paceline.data.exec.stats import Meter, Record, StreamStats
from paceline.data.mixing import Mixing
from paceline.data.parts import Division
from paceline.data.plan import Node
from paceline.data.position import Delivered
from paceline.data.sparse import Partial

if TYPE_CHECKING:
    from paceline.data.transform import Skipped


class Feeds(Protocol):
    def open(self, epoch: int, unit: int, offset: int) -> Iterator[Delivered]:
        """The rows of an epoch's order, from there on; to close it is to leave it."""
        ...

    def fingerprint(self) -> str: ...

    def num_rows(self) -> int | None:
        """Of an epoch, where it is known beforehand."""
        ...

    def schema(self) -> Schema | None: ...

    def mixing(self) -> Mixing:
        """What shuffles do to the order of rows."""
        ...

    def stats(self) -> str: ...


@runtime_checkable
class PartedFeeds(Feeds, Protocol):
    """Rows that lie elsewhere: only those of one worker are fetched."""

    def open_part(self, division: Division, rank: int) -> Iterator[Partial]:
        """As `open`, from where the division starts, with the rows of one worker at hand."""
        ...


def opened(feeds: Feeds, division: Division, rank: int) -> Iterator[Delivered | Partial]:
    """What a worker cuts its batches from."""
    if isinstance(feeds, PartedFeeds):
        return feeds.open_part(division, rank)
    start = division.start
    return feeds.open(start.epoch, start.unit, start.offset)


class LocalFeeds:
    """The rows of a plan, run for this process alone: here if it is small, else in data processes."""

    def __init__(self, plan: Node, executor: Executor | None = None) -> None:
        self._plan = plan
        self._given = executor
        self._record = Record()
        self._chosen: Executor | None = None
        self._last: tuple[int, Pipeline] | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self._plan,)  # what runs here stays here

    def open(self, epoch: int, unit: int, offset: int) -> Iterator[Delivered]:
        executor = self._executor()
        if self._last is None or self._last[0] != epoch:
            self._last = epoch, lowered_for(self._plan, epoch, executor)
        deliveries = executor.run(self._last[1], unit, offset)
        return self._metered(deliveries) if isinstance(executor, InlineExecutor) else deliveries

    def fingerprint(self) -> str:
        return self._facts().fingerprint()

    def num_rows(self) -> int | None:
        return self._facts().num_rows()

    def schema(self) -> Schema | None:
        return self._facts().schema()

    def mixing(self) -> Mixing:
        return self._facts().mixing()

    def stats(self) -> str:
        return str(self.seen())

    def seen(self) -> StreamStats:
        from paceline.data.exec.processes import ProcessExecutor

        return self._chosen.stats() if isinstance(self._chosen, ProcessExecutor) else self._record.seen()

    @property
    def skipped(self) -> tuple[Skipped, ...]:
        """Rows that a user's function failed on, under `on_error="skip"`."""
        return self.seen().skipped

    def _facts(self) -> Facts:
        return Facts(self._plan, self._executor())

    def _executor(self) -> Executor:
        if self._given is not None:
            self._chosen = self._given
        elif DataContext.in_data_process or is_small(self._plan):
            self._chosen = self._chosen if isinstance(self._chosen, InlineExecutor) else InlineExecutor()
        else:
            self._chosen = self._in_processes()
        return self._chosen

    def _in_processes(self) -> Executor:
        from paceline.data.exec.processes import ProcessExecutor, shared_service

        service = shared_service()
        if isinstance(self._chosen, ProcessExecutor) and self._chosen.service is service:
            return self._chosen
        return ProcessExecutor(service)

    def _metered(self, deliveries: Iterator[Delivered]) -> Iterator[Delivered]:
        meter = Meter()
        self._record.meters = {(0, "in this process"): meter}
        began = time.perf_counter()
        for delivered in deliveries:
            meter.busy_s += time.perf_counter() - began
            meter.num_rows += delivered.block.num_rows
            meter.num_bytes += delivered.block.nbytes
            if isinstance(self._chosen, InlineExecutor):
                self._record.skipped = self._chosen.scope.skipped
            yield delivered
            began = time.perf_counter()


def is_small(plan: Node) -> bool:
    """Whether starting processes would take longer than reading the rows here."""
    pipeline = outline(plan)
    if any(transform.pool is not None for chain in pipeline.chains for transform in chain):
        return False
    sizes = [task.unit.num_bytes for task in pipeline.tasks]
    total = sum(size for size in sizes if size is not None)
    return None not in sizes and total < DataContext.get_current().inline_below
