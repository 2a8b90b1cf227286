"""The state of a schedule: blocks, works, units, streams and processes."""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable
from dataclasses import dataclass, field

from paceline.data.exec.schedule_commands import StreamSpec


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
    """All members that ever joined."""
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


@dataclass
class ProcessState:
    number: int
    pool: Hashable
    is_ready: bool = False
    work: WorkState | None = None
    is_retired: bool = False
    holds: set[int] = field(default_factory=set)
