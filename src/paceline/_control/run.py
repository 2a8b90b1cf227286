"""The state of a run: its phases, and the data of each. Values only; `step` moves between them.

What matters only while workers run is a field of `Running` and vanishes with it. Per-rank data is stored in trees: an
event changes the entry of one rank, and must not cost more with more ranks.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Literal

import msgspec

from paceline._control.events import Retention
from paceline._core.checkpoint_records import CheckpointRecord, StagedFiles, ValidationTask
from paceline._core.cursor import Cursors
from paceline._core.reductions import Path, Reduction
from paceline._core.trie import Trie
from paceline._engine.messages import Reported, WorkerFailure

NUM_RECENT_METRICS = 64
_WIDTH = 32

Ending = Literal["complete", "interrupted", "failed", "preempted", "resized"]
"""How an attempt ends. A run ends in one of the first four ways; after `resized` another attempt follows."""


class RankProgress(msgspec.Struct, frozen=True, gc=False):
    """The last report number of every rank, and their minimum.

    A tree: a report copies a few dozen numbers, however many ranks there are.
    """

    minimums: tuple[int, ...]
    """The minimum of each part; at the leaves, the number of each rank."""
    minimum: int
    parts: tuple[RankProgress, ...] = ()
    part_size: int = 1
    """Ranks per part; the last part may have fewer."""

    @classmethod
    def start_at(cls, size: int, seq: int) -> RankProgress:
        if size <= _WIDTH:
            return cls((seq,) * size, seq)
        part_size = _WIDTH
        while size > part_size * _WIDTH:
            part_size *= _WIDTH
        num_full, rest = divmod(size, part_size)
        parts = (cls.start_at(part_size, seq),) * num_full + ((cls.start_at(rest, seq),) if rest else ())
        return cls((seq,) * len(parts), seq, parts, part_size)

    def __getitem__(self, rank: int) -> int:
        node = self
        while node.parts:
            at, rank = divmod(rank, node.part_size)
            node = node.parts[at]
        return node.minimums[rank]

    def advance(self, rank: int, seq: int) -> RankProgress:
        if not self.parts:
            minimums, before = self.minimums, self.minimums[rank]
            minimums = (*minimums[:rank], seq, *minimums[rank + 1 :])
            return RankProgress(minimums, self.minimum if before > self.minimum <= seq else min(minimums))
        at, rank = divmod(rank, self.part_size)
        part = self.parts[at].advance(rank, seq)
        parts = (*self.parts[:at], part, *self.parts[at + 1 :])
        minimums = (*self.minimums[:at], part.minimum, *self.minimums[at + 1 :])
        return RankProgress(minimums, min(minimums), parts, self.part_size)


class AttemptFailures(msgspec.Struct, frozen=True):
    """The failures of an attempt, in order of arrival. All but one may be secondary."""

    in_order: Trie[WorkerFailure] = Trie()
    by_rank: Trie[tuple[WorkerFailure, ...]] = Trie()
    num_secondary: int = 0

    def __len__(self) -> int:
        return len(self.in_order)

    def __contains__(self, failure: WorkerFailure) -> bool:
        return failure in self.by_rank.get(failure.rank, ())

    def __iter__(self) -> Iterator[WorkerFailure]:
        return self.in_order.values()

    def with_failure(self, failure: WorkerFailure) -> AttemptFailures:
        of_rank = (*self.by_rank.get(failure.rank, ()), failure)
        return AttemptFailures(
            self.in_order.put(len(self.in_order), failure),
            self.by_rank.put(failure.rank, of_rank),
            self.num_secondary + failure.collateral,
        )

    @property
    def are_all_secondary(self) -> bool:
        """Whether the cause of all these failures is still unknown."""
        return self.num_secondary == len(self)


NO_FAILURES = AttemptFailures()


class PendingCheckpoint(msgspec.Struct, frozen=True):
    """A checkpoint that a rank has announced and whose commit is not requested yet."""

    seq: int
    name: str
    rank: int
    """The first rank that announced it; `where` is the line in the user's code."""
    where: str
    metrics: msgspec.Raw
    unstaged: Trie[bool] = Trie()
    """The ranks that have announced it and whose files are not staged yet."""
    parts: Trie[StagedFiles] = Trie()
    """By rank."""
    since: float = 0.0
    validation: tuple[int, ValidationTask] | None = None
    """The lowest rank that requested a validation, and its request."""


class PendingReduction(msgspec.Struct, frozen=True):
    """A report with metrics to reduce that some rank has not made yet."""

    reductions: tuple[tuple[Path, Reduction], ...]
    """How each metric is reduced, as far as known from the reports so far."""
    by_rank: Trie[Reported] = Trie()
    """The reports with metrics to reduce, by rank."""


class Preemption(msgspec.Struct, frozen=True):
    """A machine is about to be taken away."""

    ranks: tuple[int, ...]
    """The ranks that received a notice; all ranks if the whole run has to stop."""
    deadline: float
    """On the controller's clock."""
    includes_driver: bool = True
    """The driver is preempted too, so the run cannot continue here."""


class PreemptionNotices(msgspec.Struct, frozen=True):
    """All preemption notices of an attempt, merged: every worker of a machine may send one."""

    ranks: Trie[bool] = Trie()
    deadline: float = math.inf
    includes_driver: bool = False

    def with_notice(self, ranks: tuple[int, ...], deadline: float, includes_driver: bool) -> PreemptionNotices:
        merged = self.ranks
        for rank in ranks:
            merged = merged.put(rank, True)
        return PreemptionNotices(merged, min(self.deadline, deadline), self.includes_driver or includes_driver)


class Running(msgspec.Struct, frozen=True, gc=False):
    """Workers were requested and have not all ended."""

    progress: RankProgress
    num_ready: int = 0
    pending: tuple[PendingCheckpoint, ...] = ()
    refused: tuple[int, ...] = ()
    """Checkpoints that a rank failed to stage, for as long as another rank may still announce them."""
    recent: tuple[tuple[int, msgspec.Raw], ...] = ()
    """The last metrics of rank 0 by report number, for checkpoints that other ranks announce."""
    positions: Trie[Trie[Cursors]] = Trie()
    """Dataset cursors by report and rank, for reports that some rank has not reached or that wait for a commit."""
    reducing: Trie[PendingReduction] = Trie()
    """By report number, the inputs of a checkpoint's reduced metrics, until all ranks have made the report."""
    returned: Trie[bool] = Trie()
    num_stopped: int = 0
    fewest_reports: tuple[int, int, str] | None = None
    """Of the returned ranks, the one with the fewest reports: rank, count, and the line of its last report."""
    most_reports: tuple[int, int, str] | None = None
    """The one with the most."""
    lowest_end: int | None = None
    """Of the ranks that have ended, the lowest number of a last report: no later checkpoint can be complete."""
    held_counts: Trie[tuple[int, int]] | None = None
    """Set once a stop is requested: of the active ranks that have answered, the report count and the checks since."""
    asks: bool = False
    """The code of some rank checks for preemption notices, so all ranks must see this one before the last step."""
    stop_at: int | None = None
    """The report after which all ranks stop, once agreed."""
    notices: PreemptionNotices | None = None
    """The preemption notices, if the ranks stop because of them."""
    failed: AttemptFailures = NO_FAILURES
    is_draining: bool = False
    """The attempt has failed. It ends once the other ranks have made report `lowest_end` and its files are stored."""
    failure_deadline: float | None = None
    """Latest time for the cause of a secondary failure to arrive, or for the end of the drain."""
    hang: str = ""
    stop_deadline: float | None = None
    """Latest time for a stop at the next report."""
    may_grow: bool = False
    """The workers have run long enough without a resize: if there is capacity, the run grows at the next commit."""
    started_at: float = 0.0

    @property
    def num_returned(self) -> int:
        return len(self.returned)

    @property
    def preemption(self) -> Preemption | None:
        """The notices as one value. Visits every affected rank."""
        notices = self.notices
        if notices is None:
            return None
        return Preemption(tuple(notices.ranks), notices.deadline, notices.includes_driver)


class Stopping(msgspec.Struct, frozen=True):
    """The attempt is over; processes are ending and commits are finishing."""

    running: Running
    ending: Ending
    failed: AttemptFailures = NO_FAILURES
    stopped: bool = False
    deadline: float | None = None
    """When workers that were left to exit by themselves are killed, on this driver's clock."""
    delayed_exits: Trie[str] = Trie()
    """For each rank that said so, what keeps it from exiting."""

    @property
    def failures(self) -> tuple[WorkerFailure, ...]:
        return tuple(self.failed)


class BackingOff(msgspec.Struct, frozen=True):
    """Attempts have failed repeatedly without progress: the next one waits."""

    delay_s: float
    until: float
    """On this driver's clock."""


class Restoring(msgspec.Struct, frozen=True):
    """The newest checkpoint is being verified before workers start from it."""

    record: CheckpointRecord


class Waiting(msgspec.Struct, frozen=True):
    """The capacity is below the minimum number of workers."""


class Validating(msgspec.Struct, frozen=True):
    """Training is complete and the workers are gone; pending validations still run."""


class Finished(msgspec.Struct, frozen=True):
    ending: Ending
    failures: tuple[WorkerFailure, ...] = ()
    reason: str = ""
    """If workers failed: why there was no further attempt."""


class Unopened(msgspec.Struct, frozen=True):
    """No driver has opened the run yet."""


Phase = Unopened | BackingOff | Restoring | Waiting | Running | Stopping | Validating | Finished


class Run(msgspec.Struct, frozen=True, gc=False):
    size: int = 1
    """The current, or last, number of workers."""
    sizes: tuple[int, ...] = (1,)
    """Allowed numbers of workers, ascending."""
    num_places: int | None = None
    """How many workers the engine has capacity for, if known."""
    resize_every_s: float = 0.0
    max_failures: int = 0
    max_preemption_failures: int = -1
    controller_failure_limit: int = -1
    exit_grace_s: float = 10.0
    retention: Retention = Retention()
    initial: str | None = None
    purpose: str = ""
    phase: Phase = Unopened()
    attempt: int = 0
    num_failures: int = 0
    num_preemptions: int = 0
    num_engine_failures: int = 0
    num_engine_failures_without_report: int = 0
    """Engine failures since the last report of any rank."""
    last_failure_fingerprint: str = ""
    """Identifies the last failure; see `retry_policy.failure_fingerprint`."""
    furthest_report: int = 0
    """The highest report number that this driver's failed attempts have reached."""
    num_failures_without_progress: int = 0
    """Failed attempts in a row that made no progress; see `retry_policy.has_progressed`."""
    checkpoints: tuple[CheckpointRecord, ...] = ()
    """Committed and kept, oldest first."""
    pinned: tuple[int, ...] = ()
    """Numbers of the checkpoints that other runs start from: kept regardless of retention."""
    committing: tuple[int, ...] = ()
    saves: tuple[tuple[int, float], ...] = ()
    """For each checkpoint being committed: its number, and when the first rank announced it."""
    last_save_s: float | None = None
    """How long the last checkpoint took, from announcement to commit."""
    num_reports: int = 0
    """The last report number of rank 0 that still counts."""
    stop_requested: bool = False
    preempted: bool = False
    """The driver's own machine is preempted: there is no further attempt."""
    validates: bool = False
    """Whether this driver has a validation function."""
    validating: tuple[int, int] | None = None
    """The running validation: number and attempt of its checkpoint. The next ones are the pending records."""

    @property
    def latest(self) -> CheckpointRecord | None:
        return self.checkpoints[-1] if self.checkpoints else None

    @property
    def is_saving(self) -> bool:
        """Whether a rank is writing a checkpoint."""
        return isinstance(self.phase, Running) and any(pending.unstaged for pending in self.phase.pending)

    @property
    def is_trained(self) -> bool:
        """Whether training is complete, though checkpoints may still be validated."""
        phase = self.phase
        return isinstance(phase, Validating) or (isinstance(phase, Finished) and phase.ending == "complete")

    @property
    def pending_validations(self) -> tuple[CheckpointRecord, ...]:
        """The checkpoints whose validation was requested and has not ended, in validation order."""
        return tuple(record for record in self.checkpoints if record.status == "PENDING_VALIDATION")
