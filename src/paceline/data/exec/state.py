"""What a schedule knows of blocks, works, units, streams and processes."""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable
from dataclasses import dataclass, field

from paceline.data.exec.commands import Course


@dataclass
class BlockState:
    number: int
    nbytes: int
    charge: int
    stream: int
    rows: int = 0
    offset: int = 0
    unit: int = 0
    counted: bool = True
    """It is in flight."""
    wanted: bool = True
    """Somebody has still to take it."""
    holders: set[int] = field(default_factory=set)
    """Members and processes that may look at it."""
    writer: int | None = None


@dataclass
class WorkState:
    number: int
    stream: int
    unit: int
    stage: int
    process: int
    wants: int | None = None
    needs: bool = False
    fed: int | None = None
    """The block that it was fed last, which it has not passed."""
    lent: int | None = None
    over: bool = False


@dataclass
class UnitState:
    index: int
    pools: tuple[Hashable, ...]
    skip: int
    works: list[WorkState | None] = field(default_factory=list)
    finished: list[bool] = field(default_factory=list)
    outputs: list[deque[int]] = field(default_factory=list)
    """Of each stage, blocks that the next one has not been fed."""
    deaths: int = 0
    failed: bool = False

    def reset(self) -> None:
        self.works = [None for _ in self.pools]
        self.finished = [False for _ in self.pools]
        self.outputs = [deque() for _ in self.pools]


@dataclass
class StreamState:
    number: int
    course: Course
    head: int
    next_unit: int
    units: dict[int, UnitState] = field(default_factory=dict)
    announced: deque[int] = field(default_factory=deque)
    """Blocks in order, from `base` on."""
    base: int = 0
    passed: dict[int, int] = field(default_factory=dict)
    """For each member, how many of the announced blocks it has passed."""
    joined: set[int] = field(default_factory=set)
    """All that ever did."""
    ended: set[int] = field(default_factory=set)
    patient: bool = False
    largest: int = 0
    typical: int = 0
    """About what the blocks of late were, at most."""
    in_flight: int = 0
    failed: bool = False

    @property
    def over(self) -> bool:
        return self.head >= len(self.course.chain_of)

    @property
    def waits_for_members(self) -> bool:
        return len(self.joined) < self.course.members and self.base == 0

    @property
    def num_taken(self) -> int:
        """Announced blocks that all who joined have passed."""
        return min(self.passed.values(), default=0)

    def fresh(self, index: int) -> UnitState:
        """A unit that nobody has begun."""
        pools = self.course.chains[self.course.chain_of[index]]
        unit = UnitState(index, pools, self.course.skip if index == self.course.unit else 0)
        unit.reset()
        return unit


@dataclass
class ProcessState:
    number: int
    pool: Hashable
    ready: bool = False
    work: WorkState | None = None
    retired: bool = False
    holds: set[int] = field(default_factory=set)
