"""What a service knows of its streams, and of those who take from them."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field

import cloudpickle
import msgspec
import xxhash

from paceline._core.errors import DataError
from paceline._engine.local.devices import this_machine
from paceline.data.exec.commands import READERS, Bounds, Course, Fail
from paceline.data.exec.failure import Failure, failure
from paceline.data.exec.gpus import check_gpus
from paceline.data.exec.pipeline import Pipeline
from paceline.data.exec.stats import Meter, Record
from paceline.data.exec.wire import Wire
from paceline.data.transform import Pool


class Job(msgspec.Struct, frozen=True):
    """The transforms of a stage as they are sent; those that are the same have the same name."""

    name: str
    pickled: bytes
    title: str
    pool: Pool | None


@dataclass(eq=False)
class Peer:
    """A process that takes rows, by one line for all its streams."""

    wire: Wire
    members: dict[int, Member] = field(default_factory=dict)
    arenas: set[int] = field(default_factory=set)
    forget: list[int] = field(default_factory=list)
    left: set[int] = field(default_factory=set)
    """Members that have left and may still hold blocks."""
    left_early: set[int] = field(default_factory=set)
    """What it called streams that it left before they were open."""


@dataclass(eq=False)
class Member:
    number: int
    peer: Peer
    key: int
    """What the peer calls the stream."""
    stream: int


@dataclass
class Running:
    pipeline: Pipeline
    jobs: tuple[tuple[Job, ...], ...]
    """For each chain, those of its stages."""
    record: Record
    key: Hashable
    """Members with the same one share the stream."""
    writable: bool
    ranks: set[int] = field(default_factory=set)
    members: set[int] = field(default_factory=set)
    patient_until: float | None = None
    deaths: dict[int, str] = field(default_factory=dict)
    """For each unit that a process died at, how it did."""
    failures: dict[int, tuple[Failure, bytes]] = field(default_factory=dict)

    def meter(self, chain: int, stage: int) -> Meter:
        return self.record.meter(stage, self.jobs[chain][stage].title)

    def failure(self, fail: Fail, last_death: str) -> tuple[Failure, bytes]:
        if fail.unit is None:
            error = DataError(
                f"data processes cannot be started: {fail.deaths} in a row ended before they were ready; "
                f"the last one {last_death}"
            )
            return failure(error, "")
        if fail.unit in self.failures:
            return self.failures[fail.unit]
        name = self.pipeline.tasks[fail.unit].unit.name
        how = self.deaths.get(fail.unit, "ended")
        error = DataError(
            f"{name}: the process that worked on it died {fail.deaths} times; the last one {how}\n\n"
            "hint: DataContext.max_unit_failures says how often a unit is done again"
        )
        return failure(error, "")


def jobs_of(pipeline: Pipeline) -> tuple[tuple[Job, ...], ...]:
    num_gpus = len(this_machine().gpus)
    for chain in range(len(pipeline.chains)):
        for stage in pipeline.stages(chain):
            check_gpus(stage.name, stage.pool, num_gpus)
    return tuple(
        tuple(
            _job(tuple(stage.transforms), stage.name if index else _title(stage.name), stage.pool)
            for index, stage in enumerate(pipeline.stages(chain))
        )
        for chain in range(len(pipeline.chains))
    )


def course_of(
    pipeline: Pipeline, jobs: tuple[tuple[Job, ...], ...], unit: int, skip: int, members: int
) -> tuple[Course, dict[Hashable, Bounds]]:
    bounds: dict[Hashable, Bounds] = {}
    chains = []
    for chain in jobs:
        pools: list[Hashable] = []
        for index, job in enumerate(chain):
            pool: Hashable = (index, job.name, job.pool.num_gpus) if job.pool is not None else READERS
            if job.pool is not None:
                bounds[pool] = Bounds(job.pool.least, job.pool.most)
            pools.append(pool)
        chains.append(tuple(pools))
    chain_of = tuple(task.chain for task in pipeline.tasks)
    return Course(chain_of, tuple(chains), unit, skip, members, patient=members > 1), bounds


def _job(transforms: tuple[object, ...], title: str, pool: Pool | None) -> Job:
    pickled: bytes = cloudpickle.dumps(transforms)
    return Job(xxhash.xxh3_128_hexdigest(pickled), pickled, title, pool)


def _title(name: str) -> str:
    return f"read -> {name}" if name else "read"
