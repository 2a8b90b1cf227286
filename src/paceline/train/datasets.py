"""Datasets of a trainer: which are divided among the workers and how, and what each worker gets of them.

The rows are made in processes beside the workers, by a service that lives with the driver and outlives every group of
workers. A worker's part knows where it stands; `report()` puts that into the checkpoint's record, and the next attempt
goes on from there.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal

from paceline._control.events import StageUse
from paceline._control.vitals import Stages
from paceline._engine.local.launch import prewarm
from paceline._engine.messages import ON_CLUSTER, Begin, Shard
from paceline._worker.context import Context

if TYPE_CHECKING:
    from paceline.data.context import DataContext, ExecutionOptions
    from paceline.data.exec.stats import StreamStats
    from paceline.data.feeds import Feeds
    from paceline.data.iterator import DataIterator
    from paceline.data.plan import Node

TRAIN_DATASET_KEY = "train"
"""What trainers that take a label and parameters themselves call the dataset they train on."""


@dataclass(frozen=True)
class DataConfig:
    """Which datasets of a trainer are divided among its workers.

    A dataset that is divided gives every worker equally many rows: the few that are too many are left out, other ones
    in every epoch. Those named in `exact` give every row exactly once, to workers that may then differ by a row: for
    evaluation. What is not divided, every worker reads whole.
    """

    datasets_to_split: Literal["all"] | Sequence[str] = "all"
    execution_options: ExecutionOptions | None = None
    """What the processes that read and transform may use; None: what there is."""
    enable_shard_locality: bool = True
    """On a cluster, let workers get rows from their own machine where that can be."""
    exact: Sequence[str] = field(default=())

    def __post_init__(self) -> None:
        if self.datasets_to_split != "all":
            _check_names("datasets_to_split", self.datasets_to_split)
        _check_names("exact", self.exact)
        _check_options(self.execution_options)

    def shards(self, names: Sequence[str]) -> tuple[Shard, ...]:
        """What workers get of the datasets with these names."""
        divided = names if self.datasets_to_split == "all" else self.datasets_to_split
        for argument, named in (("datasets_to_split", divided), ("exact", self.exact)):
            for name in named:
                if name not in names:
                    raise ValueError(f"{argument} names {name!r}; datasets= has: {_shown(names)}")
        modes: dict[str, Literal["equal", "exact", "all"]] = dict.fromkeys(names, "all")
        modes |= dict.fromkeys(divided, "equal")
        modes |= dict.fromkeys(self.exact, "exact")
        return tuple(Shard(name, mode) for name, mode in modes.items())


@dataclass(frozen=True)
class AskedData:
    """The datasets of a trainer, checked."""

    plans: Mapping[str, Node]
    shards: tuple[Shard, ...]
    options: ExecutionOptions | None

    @property
    def context(self) -> DataContext:
        """What their running may use."""
        from paceline.data.context import DataContext

        context = DataContext.get_current()
        return context if self.options is None else replace(context, execution_options=self.options)

    def within(self, num_cores: int) -> AskedData:
        """The same on so many cores, where the user has not said on how many."""
        options = self.context.execution_options
        if options.resource_limits.cpu is not None:
            return self
        limits = replace(options.resource_limits, cpu=num_cores)
        return replace(self, options=replace(options, resource_limits=limits))


def asked_data(datasets: Mapping[str, Any] | None, config: DataConfig) -> AskedData | None:
    """The datasets as plans; None where there are none. What is no dataset is refused by name."""
    if datasets is None:
        datasets = {}
    if not isinstance(datasets, Mapping) or not all(isinstance(name, str) for name in datasets):
        raise ValueError(f"datasets={datasets!r} is not a dict of datasets by name")
    shards = config.shards(tuple(datasets))
    if not datasets:
        return None
    from paceline.data.exec.fleet import PRELOAD
    from paceline.data.from_others import as_dataset

    prewarm(*PRELOAD)
    plans = {name: as_dataset(_made(value), f"datasets[{name!r}]")._plan for name, value in datasets.items()}
    return AskedData(plans, shards, config.execution_options)


def _made(value: Any) -> Any:
    """A dataset may be given as a function that makes it."""
    return value() if inspect.isroutine(value) or isinstance(value, functools.partial) else value


@dataclass(frozen=True)
class Served:
    """The datasets of a run that is being driven."""

    address: str = ""
    """Where workers get the rows."""
    stages: Stages | None = None
    """How it goes."""


@contextlib.contextmanager
def served(asked: AskedData | None) -> Iterator[Served]:
    """The rows, to be had by workers for as long as the run is driven."""
    if asked is None:
        yield Served()
        return
    from paceline.data.exec.service import Service

    with contextlib.closing(Service(asked.context)) as service:
        for name, plan in asked.plans.items():
            service.add(name, plan)
        yield Served(service.address, lambda: stages_of(service.all_stats()))


def stages_of(seen: Mapping[str, StreamStats]) -> tuple[tuple[StageUse, ...], bool]:
    """What each stage of each dataset has done, and whether of any of them it is the workers that wait."""
    stages = tuple(
        StageUse(
            name,
            stage.name,
            stage.num_rows,
            stage.num_bytes,
            round(stage.busy_s, 3),
            round(stage.waited_for_input_s, 3),
            round(stage.waited_for_room_s, 3),
            limits=stage.name == stats.limited_by,
        )
        for name, stats in seen.items()
        for stage in stats.stages
    )
    return stages, any(stage.limits for stage in stages)


def shard_of(context: Context, name: str) -> DataIterator:
    """This worker's part of a dataset: the same object every time, as it knows which epoch is next."""
    begin = context.begin
    taken: DataIterator | None = context.shards.get(name)
    if taken is not None:
        return taken
    shard = next((shard for shard in begin.shards if shard.name == name), None)
    if shard is None:
        names = [shard.name for shard in begin.shards]
        raise KeyError(
            f"the trainer has no dataset {name!r}; there are: {_shown(names)}. "
            f"TorchTrainer(..., datasets={{{name!r}: dataset}}) gives it one"
        )
    from paceline.data.iterator import DataIterator
    from paceline.data.position import Split

    feeds = _feeds(begin, shard)
    made = DataIterator(
        feeds,
        Split(begin.rank, begin.world_size, shard.mode),
        global_batch_size=begin.global_batch_size if shard.mode == "equal" else None,
        name=name,
        default_device=_device,
    )
    left_at = dict(begin.resume.data).get(name) if begin.resume is not None else None
    if left_at is not None and left_at.fingerprint != feeds.fingerprint():
        assert begin.resume is not None
        raise ValueError(
            f"the dataset {name!r} has other files, other rows in them, or another order than when {begin.resume.name} "
            "was made: where it stood then means nothing now\n\n"
            "hint: give the run another name and RunConfig(...), resume_from_checkpoint=Checkpoint(...) to train on "
            "with the new data from its beginning"
        )
    if left_at is not None:
        made.go_to(left_at)
    context.shards[name] = made
    context.positions[name] = made.cursor
    return made


def _feeds(begin: Begin, shard: Shard) -> Feeds:
    if begin.data_address.startswith(ON_CLUSTER):
        from paceline.data.exec.ray.feeds import RayFeeds

        return RayFeeds(begin.data_address, shard.name, begin.attempt)
    from paceline.data.exec.remote import RemoteFeeds

    whole = shard.mode == "all"
    return RemoteFeeds(
        begin.data_address,
        shard.name,
        begin.rank,
        1 if whole else begin.world_size,
        shared=whole and begin.world_size > 1,
    )


def _device() -> Any:
    """What `device="auto"` is in a worker: the one it was given."""
    from paceline.train.torch.devices import get_device

    return get_device()


def _check_options(options: Any) -> None:
    if options is None:
        return
    from paceline.data.context import ExecutionOptions

    if isinstance(options, Mapping):
        raise ValueError(
            f"execution_options={options!r} is for each dataset by itself, and all datasets of a trainer are read by "
            "the same processes\n\nhint: give one ExecutionOptions for all of them"
        )
    if not isinstance(options, ExecutionOptions):
        raise ValueError(f"execution_options={options!r} is not a paceline.data.ExecutionOptions, or None")


def _check_names(argument: str, names: object) -> None:
    listed = isinstance(names, Sequence) and not isinstance(names, str)
    if not listed or not all(isinstance(name, str) for name in names):  # type: ignore[attr-defined]
        allowed = "'all' or a list of names" if argument == "datasets_to_split" else "a list of names"
        raise ValueError(f"{argument}={names!r} is not {allowed}")


def _shown(names: Sequence[str]) -> str:
    return ", ".join(map(repr, names)) or "none"
