"""The state of a schedule (blocks, works, units, streams, processes), its inputs, and the commands it returns."""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable, Iterator
from dataclasses import dataclass, field
from functools import cached_property

import msgspec


@dataclass
class BlockState:
    number: int
    nbytes: int
    charge: int
    stream: int
    rows: int = 0
    offset: int = 0
    unit: int = 0
    is_counted: bool = True
    """It is in flight."""
    is_wanted: bool = True
    """Somebody still has to take it."""
    holders: set[int] = field(default_factory=set)
    """Members and processes that may read it."""
    writer: int | None = None


@dataclass
class WorkState:
    number: int
    stream: int
    unit: int
    stage: int
    process: int
    requested_bytes: int | None = None
    needs_input: bool = False
    fed_block: int | None = None
    """The block it was fed last and has not passed yet."""
    lent_block: int | None = None
    is_over: bool = False


@dataclass
class UnitState:
    index: int
    pools: tuple[Hashable, ...]
    skip: int
    works: list[WorkState | None] = field(default_factory=list)
    finished: list[bool] = field(default_factory=list)
    outputs: list[deque[int]] = field(default_factory=list)
    """For each stage, its output blocks that were not yet fed to the next stage."""
    deaths: int = 0
    is_failed: bool = False

    def reset(self) -> None:
        self.works = [None for _ in self.pools]
        self.finished = [False for _ in self.pools]
        self.outputs = [deque() for _ in self.pools]


@dataclass
class StreamState:
    number: int
    spec: StreamSpec
    head: int
    next_unit: int
    units: dict[int, UnitState] = field(default_factory=dict)
    announced: deque[int] = field(default_factory=deque)
    """Blocks in order, starting with number `base`."""
    base: int = 0
    num_passed: dict[int, int] = field(default_factory=dict)
    """How many of the announced blocks each member has passed."""
    joined_members: set[int] = field(default_factory=set)
    ended_members: set[int] = field(default_factory=set)
    is_patient: bool = False
    largest_charge: int = 0
    typical_charge: int = 0
    """An upper estimate of recent block sizes."""
    in_flight: int = 0
    is_failed: bool = False

    @property
    def is_over(self) -> bool:
        return self.head >= len(self.spec.chain_of)

    @property
    def waits_for_members(self) -> bool:
        return len(self.joined_members) < self.spec.num_members and self.base == 0

    @property
    def num_taken(self) -> int:
        """The number of announced blocks that all members have passed."""
        return min(self.num_passed.values(), default=0)

    def make_unit(self, index: int) -> UnitState:
        """A unit that has not been started."""
        pools = self.spec.chains[self.spec.chain_of[index]]
        unit = UnitState(index, pools, self.spec.skip if index == self.spec.unit else 0)
        unit.reset()
        return unit

    def iter_ready_work(self, *, has_room: bool) -> Iterator[tuple[UnitState, int]]:
        """Units and stages that could be worked on now, in order; `has_room` for a block of a new unit."""
        if self.is_failed:
            return
        kept_free: set[Hashable] = set()
        for index in sorted(self.units):
            unit = self.units[index]
            if unit.is_failed:
                return
            for stage, pool in enumerate(unit.pools):
                if unit.works[stage] is not None or unit.finished[stage] or pool in kept_free:
                    continue
                if stage and not unit.outputs[stage - 1] and not unit.finished[stage - 1]:
                    # A later unit must not take the process that this one needs.
                    kept_free.add(pool)
                    continue
                yield unit, stage
        index = self.next_unit
        if index < len(self.spec.chain_of) and (index == self.head or has_room):
            yield self.make_unit(index), 0

    def is_awaited(self, work: WorkState) -> bool:
        """Whether the consumers of this work's output have nothing left to take."""
        unit = self.units[work.unit]
        if work.stage < len(unit.pools) - 1:
            following = unit.works[work.stage + 1]
            return not unit.outputs[work.stage] and (following is None or following.fed_block is None)
        return self.base + len(self.announced) == self.num_taken


@dataclass
class ProcessState:
    number: int
    pool: Hashable
    is_ready: bool = False
    work: WorkState | None = None
    is_retired: bool = False
    holds: set[int] = field(default_factory=set)


READERS = "readers"
"""The pool that reads units and runs the transforms without their own processes."""


@dataclass(frozen=True)
class PoolBounds:
    least: int
    most: int


@dataclass(frozen=True)
class StreamSpec:
    """The parts of a pipeline that matter to the schedule."""

    chain_of: tuple[int, ...]
    chains: tuple[tuple[Hashable, ...], ...]
    """The pools of each chain's stages."""
    unit: int = 0
    skip: int = 0
    """Rows to drop from the first unit."""
    num_members: int = 1
    is_patient: bool = False
    """Wait for members that have not joined, until `stop_waiting`."""

    @cached_property
    def pools(self) -> frozenset[Hashable]:
        """Of all chains."""
        return frozenset(pool for pools in self.chains for pool in pools)


class ScheduleCommand(msgspec.Struct, frozen=True):
    """What the service has to do."""


class ProcessCommand(ScheduleCommand, frozen=True):
    process: int


class LaunchProcess(ProcessCommand, frozen=True):
    pool: Hashable


class RetireProcess(ProcessCommand, frozen=True):
    pass


class _WorkCommand(ProcessCommand, frozen=True):
    work: int


class AssignWork(_WorkCommand, frozen=True):
    stream: int
    unit: int
    stage: int
    skip: int


class LendBlock(_WorkCommand, frozen=True):
    """The process may write the block it requested room for."""

    block: int
    nbytes: int


class FeedBlock(_WorkCommand, frozen=True):
    """The next block of the unit, from the previous stage."""

    block: int


class EndFeed(_WorkCommand, frozen=True):
    """The unit has no more blocks."""


class DropWork(_WorkCommand, frozen=True):
    """The work is no longer wanted."""


class AnnounceBlock(ScheduleCommand, frozen=True):
    stream: int
    member: int
    block: int
    unit: int
    offset: int


class EndStream(ScheduleCommand, frozen=True):
    stream: int
    member: int


class FailStream(ScheduleCommand, frozen=True):
    """The stream has reached a unit that failed, by an exception or because its processes died."""

    stream: int
    unit: int | None
    """None if processes cannot be started at all."""
    deaths: int


class FreeBlock(ScheduleCommand, frozen=True):
    """Nobody reads or writes the block any more."""

    block: int
