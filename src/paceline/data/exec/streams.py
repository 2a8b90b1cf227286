"""What a service knows about its streams and their consumers."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field

import cloudpickle
import msgspec
import xxhash

from paceline._core.errors import DataError
from paceline._engine.local.devices import this_machine
from paceline.data.exec.failure import DataFailure, capture_failure
from paceline.data.exec.message_socket import MessageSocket
from paceline.data.exec.pipeline import Pipeline, PipelineStage, check_gpus
from paceline.data.exec.schedule_state import READERS, FailStream, PoolBounds, StreamSpec
from paceline.data.exec.stats import StageMeter, StatsRecorder
from paceline.data.planning.plan import PoolSpec


class StageJob(msgspec.Struct, frozen=True):
    """The transforms of a stage as they are sent; equal ones have the same name."""

    name: str
    pickled: bytes
    title: str
    pool: PoolSpec | None


@dataclass(eq=False)
class Peer:
    """A process that takes rows, over one connection for all its streams."""

    wire: MessageSocket
    members: dict[int, StreamMember] = field(default_factory=dict)
    arenas: set[int] = field(default_factory=set)
    arenas_to_forget: list[int] = field(default_factory=list)
    departed_members: set[int] = field(default_factory=set)
    """Members that have left but may still hold blocks."""
    left_early: set[int] = field(default_factory=set)
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
    writable: bool
    ranks: set[int] = field(default_factory=set)
    members: set[int] = field(default_factory=set)
    patient_until: float | None = None
    deaths: dict[int, str] = field(default_factory=dict)
    """For each unit at which a process died, how it died."""
    failures: dict[int, tuple[DataFailure, bytes]] = field(default_factory=dict)

    def meter(self, chain: int, stage: int) -> StageMeter:
        return self.record.meter(stage, self.jobs[chain][stage].title)

    def describe_failure(self, fail: FailStream, last_death: str) -> tuple[DataFailure, bytes]:
        if fail.unit is None:
            error = DataError(
                f"cannot start data processes: {fail.deaths} in a row ended before they were ready; "
                f"the last one {last_death}"
            )
            return capture_failure(error, "")
        if fail.unit in self.failures:
            return self.failures[fail.unit]
        name = self.pipeline.tasks[fail.unit].unit.name
        death = self.deaths.get(fail.unit, "ended")
        error = DataError(
            f"{name}: its data process died {fail.deaths} times; the last one {death}\n\n"
            "hint: DataContext.max_unit_failures is how often a unit is retried"
        )
        return capture_failure(error, "")


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
) -> tuple[StreamSpec, dict[Hashable, PoolBounds]]:
    bounds: dict[Hashable, PoolBounds] = {}
    chains = []
    for chain in jobs:
        pools: list[Hashable] = []
        for index, job in enumerate(chain):
            pool: Hashable = (index, job.name, job.pool.num_gpus) if job.pool is not None else READERS
            if job.pool is not None:
                bounds[pool] = PoolBounds(job.pool.min_size, job.pool.max_size)
            pools.append(pool)
        chains.append(tuple(pools))
    chain_of = tuple(task.chain for task in pipeline.tasks)
    return StreamSpec(chain_of, tuple(chains), unit, skip, members, is_patient=members > 1), bounds


def _make_stage_job(stage: PipelineStage, is_first: bool) -> StageJob:
    pickled: bytes = cloudpickle.dumps(stage.transforms)
    return StageJob(xxhash.xxh3_128_hexdigest(pickled), pickled, stage.title(is_first), stage.pool)
