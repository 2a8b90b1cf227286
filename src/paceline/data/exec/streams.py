"""Serves streams: opens them for members, announces their blocks, and answers questions about datasets.

A member is a consumer of a stream; a peer is a process with members. Members that ask for the same rows at the same
time share a stream.
"""

from __future__ import annotations

import contextlib
import secrets
import selectors
import socket
import threading
import time
from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass, field

import cloudpickle
import msgspec
import xxhash

from paceline._core.errors import DataError
from paceline._engine.local.devices import this_machine
from paceline.data.exec import messages as m
from paceline.data.exec import schedule_state as s
from paceline.data.exec.arena import ArenaPool
from paceline.data.exec.failure import DataFailure, capture_failure
from paceline.data.exec.message_socket import ServiceSocket
from paceline.data.exec.pipeline import (
    DatasetEntry,
    DatasetFacts,
    Executor,
    Pipeline,
    PipelineStage,
    check_gpus,
    find_dataset,
    lower_epoch,
)
from paceline.data.exec.schedule import Schedule
from paceline.data.exec.stats import StageMeter, StatsRecorder, StreamStats
from paceline.data.planning.plan import PlanNode, PoolSpec

PATIENCE_S = 10.0
"""How long members that want more than is kept for all wait for members that have not joined.

A member that joins later gets its own stream, and the rows are computed twice."""
SHARED_PATIENCE_S = 1.0
"""The same where each member reads all rows: some members may never join."""


class StageJob(msgspec.Struct, frozen=True):
    """The transforms of a stage as they are sent; equal ones have the same name."""

    name: str
    pickled: bytes
    title: str
    pool: PoolSpec | None


class Peer(ServiceSocket):
    """A process that takes rows, over one connection for all its streams."""

    def __init__(self, end: socket.socket, selector: selectors.BaseSelector) -> None:
        super().__init__(end, m.FromMember, selector)
        self.members: dict[int, StreamMember] = {}
        self.departed_members: set[int] = set()
        """Members that have left but may still hold blocks."""
        self.left_early: set[int] = set()
        """Keys of the streams it left before they were open."""


@dataclass(eq=False)
class StreamMember:
    number: int
    peer: Peer
    key: int
    """The peer's key for the stream."""
    stream: int


@dataclass
class RunningStream:
    pipeline: Pipeline
    jobs: tuple[tuple[StageJob, ...], ...]
    """The stages of each chain."""
    record: StatsRecorder
    key: Hashable
    """Members with the same key share the stream."""
    is_writable: bool
    ranks: set[int] = field(default_factory=set)
    members: set[int] = field(default_factory=set)
    patient_until: float | None = None
    deaths: dict[int | None, str] = field(default_factory=dict)
    """For each unit at which a process died, how it died; for None, how the last one died that had no unit."""
    failures: dict[int, DataFailure] = field(default_factory=dict)

    def jobs_of(self, unit: int) -> tuple[StageJob, ...]:
        return self.jobs[self.pipeline.tasks[unit].chain]

    def meter(self, unit: int, stage: int) -> StageMeter:
        return self.record.meter(stage, self.jobs_of(unit)[stage].title)

    def describe_failure(self, fail: s.FailStream) -> DataFailure:
        death = self.deaths.get(fail.unit, "ended")
        if fail.unit is None:
            error = DataError(
                f"cannot start data processes: {fail.deaths} in a row ended before they were ready; "
                f"the last one {death}"
            )
            return capture_failure(error)
        if fail.unit in self.failures:
            return self.failures[fail.unit]
        error = DataError(
            f"{self.pipeline.tasks[fail.unit].unit.name}: its data process died {fail.deaths} times; the last one "
            f"{death}\n\nhint: DataContext.max_unit_failures is how often a unit is retried"
        )
        return capture_failure(error)


@dataclass
class _OpeningDataset(DatasetEntry):
    opening: dict[int, list[tuple[Peer, m.OpenStream]]] = field(default_factory=dict)
    """By epoch, the peers that wait for the pipeline."""


class StreamServer:
    def __init__(
        self,
        schedule: Schedule,
        arenas: ArenaPool,
        running: dict[int, RunningStream],
        make_executor: Callable[[], Executor],
        call_in_thread: Callable[[Callable[[], object]], None],
    ) -> None:
        """`call_in_thread` calls a function in the thread of the service."""
        self.peers: set[Peer] = set()
        self.datasets: dict[str, _OpeningDataset] = {}
        self._schedule = schedule
        self._arenas = arenas
        self._running = running
        self._make_executor = make_executor
        self._call_in_thread = call_in_thread
        self._members: dict[int, StreamMember] = {}
        self._registered_pipelines: dict[str, tuple[Pipeline, StatsRecorder]] = {}
        self._lock = threading.Lock()  # protects `_registered_pipelines`

    def add_dataset(self, name: str, plan: PlanNode) -> None:
        self.datasets[name] = _OpeningDataset(plan)

    @contextlib.contextmanager
    def register_pipeline(self, pipeline: Pipeline, record: StatsRecorder) -> Iterator[str]:
        """Yield a name under which the pipeline can be opened once."""
        name = secrets.token_hex(8)
        with self._lock:
            self._registered_pipelines[name] = (pipeline, record)
        try:
            yield name
        finally:
            with self._lock:
                self._registered_pipelines.pop(name, None)

    # Peers

    def serve(self, peer: Peer, mask: int) -> None:
        for message in peer.exchange(mask):
            self._handle_message(peer, message)
        if not peer.is_open:
            self.peers.discard(peer)
            for number in peer.departed_members:
                self._schedule.on_member_gone(number)
            for member in list(peer.members.values()):
                self._schedule.on_member_gone(member.number)
                self._forget_member(member)

    def _handle_message(self, peer: Peer, message: m.FromMember) -> None:
        for number, blocks in message.released.items():
            self._schedule.on_blocks_released(number, blocks)
        match message:
            case m.OpenStream():
                self._open_stream(peer, message)
            case m.QueryDataset():
                threading.Thread(
                    target=self._answer_query, args=(peer, message), name="paceline-data-answer", daemon=True
                ).start()
            case m.BlockPassed(stream=key) if key in peer.members:
                member = peer.members[key]
                if member.stream in self._running:
                    self._running[member.stream].record.consumer_waited_s += message.waited_s
                self._schedule.on_blocks_passed(member.stream, member.number, message.num_passed)
            case m.LeaveStream(stream=key) if key in peer.members:
                member = peer.members[key]
                self._schedule.on_member_left(member.stream, member.number, frozenset(message.keeps))
                self._forget_member(member)
                if message.keeps:
                    peer.departed_members.add(member.number)
            case m.LeaveStream(stream=key):
                peer.left_early.add(key)

    def _forget_member(self, member: StreamMember) -> None:
        member.peer.members.pop(member.key, None)
        self._members.pop(member.number, None)
        running = self._running.get(member.stream)
        if running is not None:
            running.members.discard(member.number)
            if not running.members:
                del self._running[member.stream]

    def _answer_query(self, peer: Peer, query: m.QueryDataset) -> None:
        """In its own thread: the answer may require reading data."""
        answer: m.QueryAnswered | m.StreamFailed
        try:
            dataset = find_dataset(self.datasets, query.dataset)
            if query.fact == "stats":
                value = self.stream_stats(dataset.record)
            else:
                value = getattr(DatasetFacts(dataset.plan, self._make_executor()), query.fact)()
            answer = m.QueryAnswered(query.stream, cloudpickle.dumps(value))
        except BaseException as error:  # noqa: BLE001
            answer = m.StreamFailed(query.stream, capture_failure(error))
        self._call_in_thread(lambda: peer.post(answer))

    def stream_stats(self, record: StatsRecorder) -> StreamStats:
        return record.to_stats(self._schedule.peak, self._schedule.limit)

    # Opening streams

    def _open_stream(self, peer: Peer, request: m.OpenStream) -> None:
        if request.pipeline:
            with self._lock:
                pipeline, record = self._registered_pipelines.pop(request.pipeline)
            self._start_stream(peer, request, pipeline, record)
            return
        try:
            dataset = find_dataset(self.datasets, request.dataset)
        except KeyError as error:
            peer.post(m.StreamFailed(request.stream, capture_failure(error)))
            return
        epoch = request.epoch
        if epoch in dataset.pipelines:
            self._join_or_start_stream(peer, request, dataset)
        elif epoch in dataset.opening:
            dataset.opening[epoch].append((peer, request))
        else:
            dataset.opening[epoch] = [(peer, request)]
            dataset.drop_pipelines_before(epoch)
            threading.Thread(
                target=self._lower_in_thread, args=(dataset, epoch), name=f"paceline-data-epoch-{epoch}", daemon=True
            ).start()

    def _lower_in_thread(self, dataset: _OpeningDataset, epoch: int) -> None:
        """In its own thread: it may list files for a long time, and runs pipelines on this very service."""
        outcome: Pipeline | BaseException
        try:
            outcome = lower_epoch(dataset.plan, epoch, self._make_executor())
        except BaseException as error:  # noqa: BLE001
            outcome = error
        self._call_in_thread(lambda: self._finish_lowering(dataset, epoch, outcome))

    def _finish_lowering(self, dataset: _OpeningDataset, epoch: int, outcome: Pipeline | BaseException) -> None:
        waiting = dataset.opening.pop(epoch)
        if isinstance(outcome, Pipeline):
            dataset.keep_pipeline(epoch, outcome)
        for peer, request in waiting:
            if peer not in self.peers or request.stream in peer.left_early:
                continue
            if isinstance(outcome, Pipeline):
                self._join_or_start_stream(peer, request, dataset)
            else:
                peer.post(m.StreamFailed(request.stream, capture_failure(outcome)))

    def _join_or_start_stream(self, peer: Peer, request: m.OpenStream, dataset: _OpeningDataset) -> None:
        for number, running in self._running.items():
            is_same = running.key == request.shared_key and request.member not in running.ranks
            if is_same and self._schedule.can_join(number):
                self._join_stream(peer, request, number)
                return
        self._start_stream(peer, request, dataset.pipelines[request.epoch], dataset.record, request.shared_key)

    def _start_stream(
        self, peer: Peer, request: m.OpenStream, pipeline: Pipeline, record: StatsRecorder, key: Hashable = None
    ) -> None:
        try:
            jobs = make_stage_jobs(pipeline)
        except Exception as error:  # noqa: BLE001
            peer.post(m.StreamFailed(request.stream, capture_failure(error)))
            return
        spec, bounds = make_stream_spec(pipeline, jobs, request.unit, request.offset, request.members)
        number = self._schedule.open_stream(spec, bounds)
        running = self._running[number] = RunningStream(pipeline, jobs, record, key, not request.is_shared)
        if request.members > 1:
            running.patient_until = time.monotonic() + (SHARED_PATIENCE_S if request.is_shared else PATIENCE_S)
        self._join_stream(peer, request, number)

    def _join_stream(self, peer: Peer, request: m.OpenStream, number: int) -> None:
        member = StreamMember(self._schedule.next_number(), peer, request.stream, number)
        running = self._running[number]
        running.ranks.add(request.member)
        running.members.add(member.number)
        if len(running.ranks) >= request.members:
            running.patient_until = None
        peer.members[member.key] = self._members[member.number] = member
        peer.post(m.StreamOpened(member.key, member.number, running.is_writable))
        self._schedule.on_member_joined(number, member.number)

    # Running streams

    @property
    def is_patient(self) -> bool:
        """Whether a stream waits for members that have not joined."""
        return any(running.patient_until is not None for running in self._running.values())

    def check_patience(self, now: float) -> None:
        for number, running in self._running.items():
            if running.patient_until is not None and now >= running.patient_until:
                running.patient_until = None
                self._schedule.stop_waiting(number)

    def execute(self, command: s.ScheduleCommand) -> None:
        match command:
            case s.AnnounceBlock(member=number, block=block) if number in self._members:
                member, arena = self._members[number], self._arenas.blocks[block]
                position = command.unit, command.offset, arena.number, self._arenas.layouts[block]
                member.peer.post(m.BlockAnnounced(member.key, block, *position), arena)
            case s.EndStream(member=number) if number in self._members:
                member = self._members[number]
                member.peer.post(m.StreamEnded(member.key))
            case s.FailStream(stream=stream) if stream in self._running:
                failure = self._running[stream].describe_failure(command)
                for number in self._running[stream].members:
                    member = self._members[number]
                    member.peer.post(m.StreamFailed(member.key, failure))


def make_stage_jobs(pipeline: Pipeline) -> tuple[tuple[StageJob, ...], ...]:
    num_gpus = len(this_machine().gpus)
    for chain in range(len(pipeline.chains)):
        for stage in pipeline.stages(chain):
            check_gpus(stage.name, stage.pool, num_gpus)
    return tuple(
        tuple(_make_stage_job(stage, index == 0) for index, stage in enumerate(pipeline.stages(chain)))
        for chain in range(len(pipeline.chains))
    )


def make_stream_spec(
    pipeline: Pipeline, jobs: tuple[tuple[StageJob, ...], ...], unit: int, skip: int, members: int
) -> tuple[s.StreamSpec, dict[Hashable, s.PoolBounds]]:
    bounds: dict[Hashable, s.PoolBounds] = {}
    chains = []
    for chain in jobs:
        pools: list[Hashable] = []
        for index, job in enumerate(chain):
            pool: Hashable = (index, job.name, job.pool.num_gpus) if job.pool is not None else s.READERS
            if job.pool is not None:
                bounds[pool] = s.PoolBounds(job.pool.min_size, job.pool.max_size)
            pools.append(pool)
        chains.append(tuple(pools))
    chain_of = tuple(task.chain for task in pipeline.tasks)
    return s.StreamSpec(chain_of, tuple(chains), unit, skip, members, is_patient=members > 1), bounds


def _make_stage_job(stage: PipelineStage, is_first: bool) -> StageJob:
    pickled: bytes = cloudpickle.dumps(stage.transforms)
    return StageJob(xxhash.xxh3_128_hexdigest(pickled), pickled, stage.title(is_first), stage.pool)
