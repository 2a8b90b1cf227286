"""Where a run is: its phases, and what each of them knows. Values only; `step` moves between them.

What matters only while workers run is a field of `Running` and vanishes with it. What has an entry for each rank is a
tree: an event changes the entry of one rank, and must not cost more where there are more of them.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Literal

import msgspec

from paceline._control.events import Retention
from paceline._core.cursor import Cursors
from paceline._core.reductions import How, Path
from paceline._core.trie import Trie
from paceline._engine.messages import CheckpointRecord, Failure, Reported, Staged, ValidationTask

RECENT = 64
_WIDTH = 32

Ending = Literal["complete", "interrupted", "failed", "preempted", "resized"]
"""How an attempt ends. A run ends in the first four ways; `resized` is followed by another attempt."""


class Progress(msgspec.Struct, frozen=True):
    """The number of the last report of every rank, and the least of these numbers.

    A tree, so that one report copies some tens of numbers however many ranks there are, and looks at no others.
    """

    leasts: tuple[int, ...]
    """Of each part the least number below it; at the leaves, of each rank its own."""
    least: int
    parts: tuple[Progress, ...] = ()
    part_size: int = 1
    """How many ranks a part has; the last one may have fewer."""

    @classmethod
    def of(cls, size: int, seq: int) -> Progress:
        if size <= _WIDTH:
            return cls((seq,) * size, seq)
        part_size = _WIDTH
        while size > part_size * _WIDTH:
            part_size *= _WIDTH
        full, rest = divmod(size, part_size)
        parts = (cls.of(part_size, seq),) * full + ((cls.of(rest, seq),) if rest else ())
        return cls((seq,) * len(parts), seq, parts, part_size)

    def __getitem__(self, rank: int) -> int:
        within = self
        while within.parts:
            at, rank = divmod(rank, within.part_size)
            within = within.parts[at]
        return within.leasts[rank]

    def advanced(self, rank: int, seq: int) -> Progress:
        at, rank = divmod(rank, self.part_size)
        parts, number = self.parts, seq
        if parts:
            part = parts[at].advanced(rank, seq)
            parts, number = (*parts[:at], part, *parts[at + 1 :]), part.least
        leasts = (*self.leasts[:at], number, *self.leasts[at + 1 :])
        return Progress(leasts, min(leasts), parts, self.part_size)


class Failures(msgspec.Struct, frozen=True):
    """Of an attempt, in the order in which they were heard. All ranks but one may be echoes of that one's end."""

    heard: Trie[Failure] = Trie()
    by_rank: Trie[tuple[Failure, ...]] = Trie()
    num_echoes: int = 0

    def __len__(self) -> int:
        return len(self.heard)

    def __contains__(self, failure: Failure) -> bool:
        return failure in self.by_rank.get(failure.rank, ())

    def __iter__(self) -> Iterator[Failure]:
        return self.heard.values()

    def followed_by(self, failure: Failure) -> Failures:
        of_rank = (*self.by_rank.get(failure.rank, ()), failure)
        return Failures(
            self.heard.put(len(self.heard), failure),
            self.by_rank.put(failure.rank, of_rank),
            self.num_echoes + failure.collateral,
        )

    @property
    def are_echoes(self) -> bool:
        """All of them: what they are the echo of is not known yet."""
        return self.num_echoes == len(self)


NO_FAILURES = Failures()


class Pending(msgspec.Struct, frozen=True):
    """A checkpoint that some rank has announced and that is not yet asked to be committed."""

    seq: int
    name: str
    rank: int
    """The first rank that announced it, and where in the user's code."""
    where: str
    metrics: msgspec.Raw
    num_announced: int = 1
    parts: Trie[Staged] = Trie()
    """By rank."""
    since: float = 0.0
    validation: tuple[int, ValidationTask] | None = None
    """Of the ranks that asked for one, the lowest, and what it asked for."""


class Reducing(msgspec.Struct, frozen=True):
    """A report with metrics to be reduced that some rank has not made yet."""

    hows: tuple[tuple[Path, How], ...]
    """How each metric is reduced, as far as ranks have said."""
    made: Trie[Reported] = Trie()
    """By rank, of those with something to be reduced."""


class Preemption(msgspec.Struct, frozen=True):
    """Some machine is about to be taken away."""

    ranks: tuple[int, ...]
    """Those that were told; all of them where the whole run has to go."""
    deadline: float
    """By the controller's clock."""
    whole: bool = True
    """The driver goes too: there is nowhere to go on."""


class Notices(msgspec.Struct, frozen=True):
    """All notices of preemption that an attempt had, in one: every worker of a machine may bring its own."""

    ranks: Trie[bool] = Trie()
    deadline: float = math.inf
    whole: bool = False

    def joined_by(self, ranks: tuple[int, ...], deadline: float, whole: bool) -> Notices:
        told = self.ranks
        for rank in ranks:
            told = told.put(rank, True)
        return Notices(told, min(self.deadline, deadline), self.whole or whole)


class Running(msgspec.Struct, frozen=True):
    """Workers were asked for and have not all ended."""

    progress: Progress
    num_ready: int = 0
    pending: tuple[Pending, ...] = ()
    refused: tuple[int, ...] = ()
    """Checkpoints that a rank could not stage, for as long as another rank may still announce them."""
    recent: tuple[tuple[int, msgspec.Raw], ...] = ()
    """The last metrics of rank 0 by number, for checkpoints that other ranks announce."""
    positions: Trie[Trie[Cursors]] = Trie()
    """By report and rank, where its datasets stood: of reports that some rank has not come to, or that wait for a
    commit."""
    reducing: Trie[Reducing] = Trie()
    """By report, what a checkpoint's metrics will be reduced from, until all ranks have made it."""
    returned: Trie[bool] = Trie()
    """The ranks whose function has returned."""
    num_stopped: int = 0
    fewest: tuple[int, int, str] | None = None
    """Of the ranks that returned, the one with the fewest reports: rank, how many, where the last was made."""
    held: Trie[int] | None = None
    """Once a stop was requested: by rank, its own count, of those at work, as far as they have answered."""
    asks: bool = False
    """Some rank's code looks for notices of preemption, so all must see this one before the last step."""
    stop_at: int | None = None
    """The report after which all ranks stop, once it is agreed."""
    notices: Notices | None = None
    """What is known of the machine's end, if that is why the ranks stop."""
    failed: Failures = NO_FAILURES
    """Broken connections that the death behind them is not yet known of."""
    hang: str = ""
    """What was said of a hang that has not passed."""
    stop_by: float | None = None
    """When a stop at the next report, or the news of a death, has taken too long."""
    may_grow: bool = False
    """These workers have been left alone for long enough: if there is room for more, they join at the next commit."""
    began: float = 0.0

    @property
    def num_returned(self) -> int:
        return len(self.returned)

    @property
    def preemption(self) -> Preemption | None:
        """As it is told; looks at every rank that it concerns."""
        told = self.notices
        return Preemption(tuple(told.ranks), told.deadline, told.whole) if told is not None else None


class Stopping(msgspec.Struct, frozen=True):
    """The attempt is over; processes are ending and commits are being finished."""

    running: Running
    ending: Ending
    failed: Failures = NO_FAILURES
    stopped: bool = False

    @property
    def failures(self) -> tuple[Failure, ...]:
        return tuple(self.failed)


class Restoring(msgspec.Struct, frozen=True):
    """The newest checkpoint is being checked before workers start from it."""

    record: CheckpointRecord


class Waiting(msgspec.Struct, frozen=True):
    """There is no room for as many workers as the run needs at least."""


class Validating(msgspec.Struct, frozen=True):
    """The training is complete and its workers are gone; validations that were asked for are still made."""


class Finished(msgspec.Struct, frozen=True):
    ending: Ending
    failures: tuple[Failure, ...] = ()
    reason: str = ""
    """Why there was no further attempt, where workers failed."""


class Unopened(msgspec.Struct, frozen=True):
    """No driver has taken the run in hand yet."""


Phase = Unopened | Restoring | Waiting | Running | Stopping | Validating | Finished


class Run(msgspec.Struct, frozen=True):
    size: int = 1
    """How many workers there are, or were last."""
    sizes: tuple[int, ...] = (1,)
    """How many there may be, in rising order."""
    num_places: int | None = None
    """How many the engine has room for, where that was asked."""
    resize_every_s: float = 0.0
    max_failures: int = 0
    max_preemption_failures: int = -1
    controller_failure_limit: int = -1
    retention: Retention = Retention()
    initial: str | None = None
    purpose: str = ""
    phase: Phase = Unopened()
    attempt: int = 0
    num_failures: int = 0
    num_preemptions: int = 0
    num_engine_failures: int = 0
    num_engine_failures_in_place: int = 0
    """Those since the last report of any rank."""
    last_place: str = ""
    """Where the last failure struck; see `policy.place_of`."""
    checkpoints: tuple[CheckpointRecord, ...] = ()
    """Committed and kept, oldest first."""
    pinned: tuple[int, ...] = ()
    """Those of them that others begin from, by number: they are kept whatever retention says."""
    committing: tuple[int, ...] = ()
    saves: tuple[tuple[int, float], ...] = ()
    """Of those being committed: their number, and when the first rank announced them."""
    last_save_s: float | None = None
    """How long the last checkpoint took, from its announcement to its commit."""
    num_reports: int = 0
    """The number of the last report of rank 0 that still counts."""
    stop_requested: bool = False
    preempted: bool = False
    """The driver's own machine goes: there is no further attempt."""
    validates: bool = False
    """Whether this driver knows how a checkpoint is validated."""
    validating: tuple[int, int] | None = None
    """The one validation under way: number and attempt of its checkpoint. Those to come are the pending records."""

    @property
    def latest(self) -> CheckpointRecord | None:
        return self.checkpoints[-1] if self.checkpoints else None

    @property
    def is_trained(self) -> bool:
        """Nothing is left to be trained, though checkpoints may still be validated."""
        phase = self.phase
        return isinstance(phase, Validating) or (isinstance(phase, Finished) and phase.ending == "complete")

    @property
    def unvalidated(self) -> tuple[CheckpointRecord, ...]:
        """Those whose validation was asked for and has not ended, in the order in which they are taken."""
        return tuple(record for record in self.checkpoints if record.status == "PENDING_VALIDATION")
