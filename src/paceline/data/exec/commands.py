"""What a schedule is told of a stream, and what it asks for."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass

READERS = "readers"
"""The pool that reads units and runs the transforms that need no processes of their own."""


@dataclass(frozen=True)
class Bounds:
    least: int
    most: int


@dataclass(frozen=True)
class Course:
    """What of a pipeline matters here."""

    chain_of: tuple[int, ...]
    """For each unit, its chain."""
    chains: tuple[tuple[Hashable, ...], ...]
    """For each chain, the pools of its stages."""
    unit: int = 0
    skip: int = 0
    """Rows of the first unit that are not wanted."""
    members: int = 1
    patient: bool = False
    """Members that have not joined are waited for, until `hurry`."""


@dataclass(frozen=True)
class Launch:
    process: int
    pool: Hashable


@dataclass(frozen=True)
class Retire:
    process: int


@dataclass(frozen=True)
class Assign:
    process: int
    work: int
    stream: int
    unit: int
    stage: int
    skip: int


@dataclass(frozen=True)
class Lend:
    """The process may write the block that it asked for room for."""

    process: int
    work: int
    block: int
    nbytes: int


@dataclass(frozen=True)
class Feed:
    """The next block that the stage before made of the unit."""

    process: int
    work: int
    block: int


@dataclass(frozen=True)
class FeedEnd:
    process: int
    work: int


@dataclass(frozen=True)
class Drop:
    """The work is not wanted any more."""

    process: int
    work: int


@dataclass(frozen=True)
class Announce:
    stream: int
    member: int
    block: int
    unit: int
    offset: int


@dataclass(frozen=True)
class End:
    stream: int
    member: int


@dataclass(frozen=True)
class Fail:
    """The stream has come to a unit that failed, by an exception, or by deaths of its processes."""

    stream: int
    unit: int | None
    """None where processes cannot be started at all."""
    deaths: int


@dataclass(frozen=True)
class Free:
    """Nobody reads or writes the block any more."""

    block: int


Command = Launch | Retire | Assign | Lend | Feed | FeedEnd | Drop | Announce | End | Fail | Free
