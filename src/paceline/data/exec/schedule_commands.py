"""The inputs of a schedule that describe a stream, and the commands it returns."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass

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
    """The chain of each unit."""
    chains: tuple[tuple[Hashable, ...], ...]
    """The pools of each chain's stages."""
    unit: int = 0
    skip: int = 0
    """Rows to drop from the first unit."""
    num_members: int = 1
    is_patient: bool = False
    """Wait for members that have not joined, until `stop_waiting`."""


@dataclass(frozen=True)
class LaunchProcess:
    process: int
    pool: Hashable


@dataclass(frozen=True)
class RetireProcess:
    process: int


@dataclass(frozen=True)
class AssignWork:
    process: int
    work: int
    stream: int
    unit: int
    stage: int
    skip: int


@dataclass(frozen=True)
class LendBlock:
    """The process may write the block it requested room for."""

    process: int
    work: int
    block: int
    nbytes: int


@dataclass(frozen=True)
class FeedBlock:
    """The next block of the unit, from the previous stage."""

    process: int
    work: int
    block: int


@dataclass(frozen=True)
class EndFeed:
    process: int
    work: int


@dataclass(frozen=True)
class DropWork:
    """The work is no longer wanted."""

    process: int
    work: int


@dataclass(frozen=True)
class AnnounceBlock:
    stream: int
    member: int
    block: int
    unit: int
    offset: int


@dataclass(frozen=True)
class EndStream:
    stream: int
    member: int


@dataclass(frozen=True)
class FailStream:
    """The stream has reached a unit that failed, by an exception or because its processes died."""

    stream: int
    unit: int | None
    """None if processes cannot be started at all."""
    deaths: int


@dataclass(frozen=True)
class FreeBlock:
    """Nobody reads or writes the block any more."""

    block: int


ScheduleCommand = (
    LaunchProcess
    | RetireProcess
    | AssignWork
    | LendBlock
    | FeedBlock
    | EndFeed
    | DropWork
    | AnnounceBlock
    | EndStream
    | FailStream
    | FreeBlock
)
