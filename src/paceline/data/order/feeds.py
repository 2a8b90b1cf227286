"""Where an iterator gets the rows of an epoch: executed for it alone, or shared with the other workers of a group."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any, Protocol, runtime_checkable

from paceline._core.engine_choice import choose_engine
from paceline.data.block import Schema
from paceline.data.context import DataContext
from paceline.data.exec.pipeline import DatasetFacts, Executor, InlineExecutor, Pipeline, lower_epoch, outline_plan
from paceline.data.exec.stats import StageMeter, StatsRecorder, StreamStats
from paceline.data.order.row_ownership import Delivery, EpochDivision, PartialDelivery
from paceline.data.order.sharding import RowDelivery
from paceline.data.order.shuffle import Mixing
from paceline.data.planning.plan import PlanNode, SkippedRows


class Feeds(Protocol):
    def open(self, epoch: int, unit: int, offset: int) -> Iterator[RowDelivery]:
        """Yield the rows of an epoch in order, from this position. Closing the iterator leaves the epoch."""

    def fingerprint(self) -> str: ...

    def num_rows(self) -> int | None:
        """Return the number of rows in an epoch, if known beforehand."""

    def schema(self) -> Schema | None: ...

    def mixing(self) -> Mixing: ...

    def stats(self) -> str: ...


@runtime_checkable
class ShardedFeeds(Feeds, Protocol):
    """Feeds of remote rows: only the rows of one worker are fetched."""

    def open_part(self, division: EpochDivision, rank: int) -> Iterator[PartialDelivery]:
        """Like `open`, from the start of the division, with the rows of one worker only."""


def open_shard(feeds: Feeds, division: EpochDivision, rank: int) -> Iterator[Delivery]:
    if isinstance(feeds, ShardedFeeds):
        return feeds.open_part(division, rank)
    start = division.start
    return feeds.open(start.epoch, start.unit, start.offset)


class LocalFeeds:
    """Runs a plan for this process alone: inline if it is small, otherwise in data processes or on a Ray cluster."""

    def __init__(self, plan: PlanNode, executor: Executor | None = None) -> None:
        self._plan = plan
        self._given_executor = executor
        self._record = StatsRecorder()
        self._current_executor: Executor | None = None
        self._last: tuple[int, Pipeline] | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self._plan,)  # running executors are not pickled

    def open(self, epoch: int, unit: int, offset: int) -> Iterator[RowDelivery]:
        executor = self.executor()
        if self._last is None or self._last[0] != epoch:
            self._last = epoch, lower_epoch(self._plan, epoch, executor)
        deliveries = executor.run(self._last[1], unit, offset)
        return self._meter_rows(deliveries) if isinstance(executor, InlineExecutor) else deliveries

    def fingerprint(self) -> str:
        return self._facts().fingerprint()

    def num_rows(self) -> int | None:
        return self._facts().num_rows()

    def schema(self) -> Schema | None:
        return self._facts().schema()

    def mixing(self) -> Mixing:
        return self._facts().mixing()

    def stats(self) -> str:
        return str(self.stream_stats())

    def stream_stats(self) -> StreamStats:
        from paceline.data.exec.service import ProcessExecutor

        executor = self._current_executor
        return executor.stats() if isinstance(executor, ProcessExecutor) else self._record.to_stats()

    @property
    def skipped_rows(self) -> tuple[SkippedRows, ...]:
        """Rows that a user's function failed on, with `on_error="skip"`."""
        return self.stream_stats().skipped

    def _facts(self) -> DatasetFacts:
        return DatasetFacts(self._plan, self.executor())

    def executor(self) -> Executor:
        """Return what runs the plan: the same executor as before if that still fits."""
        if self._given_executor is not None:
            self._current_executor = self._given_executor
        elif not DataContext.in_data_process and not is_small(self._plan):
            choice = choose_engine()
            is_on_ray = choice.engine == "ray"
            self._current_executor = self._ray_executor(choice.address) if is_on_ray else self._process_executor()
        elif not isinstance(self._current_executor, InlineExecutor):
            self._current_executor = InlineExecutor()
        return self._current_executor

    def _process_executor(self) -> Executor:
        from paceline.data.exec.service import ProcessExecutor, shared_service

        service = shared_service()
        if isinstance(self._current_executor, ProcessExecutor) and self._current_executor.service is service:
            return self._current_executor
        return ProcessExecutor(service)

    def _ray_executor(self, address: str | None) -> Executor:
        from paceline._engine.ray.connection import connect_to_cluster
        from paceline.data.exec.ray import RayExecutor

        connect_to_cluster(address)
        return RayExecutor(self._record)

    def _meter_rows(self, deliveries: Iterator[RowDelivery]) -> Iterator[RowDelivery]:
        meter = StageMeter()
        self._record.meters = {(0, "in this process"): meter}
        began = time.perf_counter()
        for delivered in deliveries:
            meter.busy_s += time.perf_counter() - began
            meter.num_rows += delivered.block.num_rows
            meter.num_bytes += delivered.block.nbytes
            if isinstance(self._current_executor, InlineExecutor):
                self._record.skipped = self._current_executor.scope.skipped
            yield delivered
            began = time.perf_counter()


def is_small(plan: PlanNode) -> bool:
    """Whether starting processes would take longer than reading the rows here."""
    pipeline = outline_plan(plan)
    if any(transform.pool is not None for chain in pipeline.chains for transform in chain):
        return False
    sizes = [task.unit.num_bytes for task in pipeline.tasks]
    total = sum(size for size in sizes if size is not None)
    return None not in sizes and total < DataContext.get_current().inline_below
