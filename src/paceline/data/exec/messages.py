"""The messages between a data service, its data processes, and the members that take its rows.

Each kind has a struct with its own tag; a receiver decodes the union of what it accepts, and dispatches by type. Rows
are not in messages: they are in arenas, whose descriptors travel beside the message that names them first.
"""

from __future__ import annotations

import msgspec

from paceline._engine.messages import StacksSampled
from paceline.data.exec.failure import DataFailure
from paceline.data.exec.packed_blocks import BlockLayout
from paceline.data.exec.stats import StageMeter
from paceline.data.planning.plan import SkippedRows


class Message(msgspec.Struct, omit_defaults=True, tag_field="type"):
    """Base of all messages."""


# From the service


class ServiceMessage(Message, kw_only=True):
    arenas: list[int] = []
    """Arenas that are new to the receiver; their descriptors come with the message, in this order."""
    forget: list[int] = []
    """Arenas to unmap."""


class LoadJob(ServiceMessage, tag="job"):
    """The transforms of a stage, for works that follow."""

    job: str
    pickled: bytes


class StartWork(ServiceMessage, tag="work"):
    work: int
    job: str
    stage: int
    skip: int | None
    """Rows to drop; None in a stage that is not the last, whose blocks are not split."""
    unit: str
    number: int
    """Of the unit, in the order of the epoch."""
    pickled: bytes
    """The unit, for the first stage."""
    block_bytes: int
    """Larger blocks are split."""


class WriteTo(ServiceMessage, tag="lend"):
    """The arena for the next block."""

    work: int
    arena: int
    nbytes: int


class TakeInput(ServiceMessage, tag="feed"):
    """A block of the previous stage."""

    work: int
    block: int
    arena: int
    layout: BlockLayout


class EndInput(ServiceMessage, tag="feed end"):
    work: int


class AbandonWork(ServiceMessage, tag="drop"):
    work: int


class StreamOpened(ServiceMessage, tag="opened"):
    stream: int
    member: int
    is_writable: bool


class BlockAnnounced(ServiceMessage, tag="block"):
    stream: int
    block: int
    unit: int
    offset: int
    arena: int
    layout: BlockLayout


class StreamEnded(ServiceMessage, tag="end"):
    stream: int


class StreamFailed(ServiceMessage, tag="failed"):
    """Also the answer to a query that failed."""

    stream: int
    failure: DataFailure


class QueryAnswered(ServiceMessage, tag="answer"):
    stream: int
    pickled: bytes


class SampleProcess(ServiceMessage, tag="sample"):
    """Asks the inspection thread of a process for its stacks."""

    number: int


ToProcess = LoadJob | StartWork | WriteTo | TakeInput | EndInput | AbandonWork
ToMember = StreamOpened | BlockAnnounced | StreamEnded | StreamFailed | QueryAnswered


# From a data process


class ProcessMessage(Message, kw_only=True):
    released: list[int] = []
    """Input blocks that it has no view of any more."""


class ProcessReady(ProcessMessage, tag="ready"):
    """With the descriptor of a connection to its inspection thread."""


class RoomRequested(ProcessMessage, tag="want"):
    work: int
    nbytes: int


class BlockWritten(ProcessMessage, tag="wrote"):
    work: int
    offset: int
    layout: BlockLayout


class InputRequested(ProcessMessage, tag="need"):
    work: int


class WorkEnded(ProcessMessage, tag="done"):
    work: int
    meter: StageMeter
    skipped: list[SkippedRows]
    failure: DataFailure | None = None


class ProcessSampled(ProcessMessage, tag="sampled"):
    """From the inspection thread, over a connection of its own."""

    sample: StacksSampled
    stage: str
    """The transform whose function runs; empty while the unit is read."""
    is_waiting: bool


FromProcess = ProcessReady | RoomRequested | BlockWritten | InputRequested | WorkEnded


# From a member


class MemberMessage(Message, kw_only=True):
    released: dict[int, list[int]] = {}
    """For each member of this connection, the blocks that it has no view of any more."""


class OpenStream(MemberMessage, tag="open"):
    """The rows of a registered pipeline, or of an epoch of a dataset."""

    stream: int
    unit: int
    offset: int
    pipeline: str = ""
    dataset: str = ""
    epoch: int = 0
    member: int = 0
    members: int = 1
    is_shared: bool = False
    """Every member reads all rows and must not write to them; else each takes its own rows."""

    @property
    def shared_key(self) -> tuple[object, ...]:
        """Members with the same key share a stream."""
        return self.dataset, self.epoch, self.unit, self.offset, self.members, self.is_shared


class BlockPassed(MemberMessage, tag="passed"):
    stream: int
    num_passed: int
    waited_s: float


class LeaveStream(MemberMessage, tag="leave"):
    stream: int
    keeps: list[int]
    """Blocks that it still has views of."""


class BlocksReleased(MemberMessage, tag="released"):
    pass


class QueryDataset(MemberMessage, tag="ask"):
    stream: int
    dataset: str
    fact: str


FromMember = OpenStream | BlockPassed | LeaveStream | BlocksReleased | QueryDataset
