"""The datasets of a trainer: which ones are split among the workers, how, and the shard each worker gets.

Processes beside the workers produce the rows. Their service belongs to the driver and outlives every attempt. A shard
knows its cursor; `report()` stores it in the checkpoint's record, and the next attempt continues from there.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import logging
import socket
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any, Literal

import cloudpickle

from paceline._control.events import StageUse
from paceline._control.usage_collector import ReadStages
from paceline._core.arguments import bad_value, check_names
from paceline._engine.base import DataInspector
from paceline._engine.local.launchers import prewarm
from paceline._engine.messages import RAY_ROWS_PREFIX, ShardSpec, WorkerInit
from paceline._worker.context import WorkerContext

if TYPE_CHECKING:
    from paceline.data.context import DataContext, ExecutionOptions
    from paceline.data.dataset import Dataset
    from paceline.data.exec.stats import StreamStats
    from paceline.data.iterator import DataIterator
    from paceline.data.order.feeds import Feeds
    from paceline.data.planning.plan import PlanNode

log = logging.getLogger("paceline")

TRAIN_DATASET_KEY = "train"
"""The name of the training dataset in trainers that take a label and parameters themselves."""


@dataclass(frozen=True)
class DataConfig:
    """Which datasets of a trainer are split among its workers.

    A split dataset gives every worker the same number of rows. The few surplus rows are dropped, different ones in each
    epoch. Datasets named in `exact` yield every row exactly once, so workers may differ by one row: for evaluation.
    Every worker reads all of a dataset that is not split.

    A subclass may divide the rows itself: see `configure`.
    """

    datasets_to_split: Literal["all"] | Sequence[str] = "all"
    execution_options: ExecutionOptions | Mapping[str, ExecutionOptions] | None = None
    """The resources that reading and transforming may use; None: whatever is available. With a dict by dataset, the
    limits add up: the same processes read all datasets."""
    enable_shard_locality: bool = True
    """For scripts written for Ray. It has no effect: one service beside the driver serves the rows."""
    exact: Sequence[str] = field(default=())

    def __post_init__(self) -> None:
        if self.datasets_to_split != "all":
            if isinstance(self.datasets_to_split, str):
                raise bad_value("datasets_to_split", "'all' or a list of names", self.datasets_to_split)
            check_names("datasets_to_split", self.datasets_to_split)
        check_names("exact", self.exact)
        _check_options(self.execution_options)

    def configure(
        self,
        datasets: Mapping[str, Dataset],
        world_size: int,
        worker_handles: Sequence[Any] | None = None,
        worker_node_ids: Sequence[str] | None = None,
        **kwargs: Any,
    ) -> list[dict[str, DataIterator]]:
        """Return the iterators of each rank, by name: what `get_dataset_shard` returns there.

        Override it to divide rows in your own way. It is called in the driver whenever workers start, for a run on this
        machine. `worker_handles` is None; `worker_node_ids` are host names.
        """
        if self.execution_options is not None:
            raise ValueError(
                "DataConfig.configure() cannot apply execution_options: iterators share this process's data service\n\n"
                "hint: set paceline.data.DataContext.get_current().execution_options"
            )
        ranks: list[dict[str, DataIterator]] = [{} for _ in range(world_size)]
        for shard in self.shards(tuple(datasets)):
            dataset = datasets[shard.name]
            if shard.mode == "all":
                parts = [dataset.iterator() for _ in ranks]
            else:
                parts = dataset.streaming_split(world_size, equal=shard.mode == "equal")
            for iterators, part in zip(ranks, parts, strict=True):
                iterators[shard.name] = part
        return ranks

    @staticmethod
    def default_ingest_options() -> ExecutionOptions:
        """Return the options that datasets of a trainer run with by default."""
        from paceline.data.context import ExecutionOptions

        return ExecutionOptions()

    def shards(self, names: Sequence[str]) -> tuple[ShardSpec, ...]:
        """Return how each of these datasets is sharded."""
        divided = names if self.datasets_to_split == "all" else self.datasets_to_split
        for argument, named in (("datasets_to_split", divided), ("exact", self.exact)):
            for name in named:
                if name not in names:
                    raise ValueError(f"unknown dataset {name!r} in {argument}; the datasets are {_format_names(names)}")
        modes: dict[str, Literal["equal", "exact", "all"]] = dict.fromkeys(names, "all")
        modes |= dict.fromkeys(divided, "equal")
        modes |= dict.fromkeys(self.exact, "exact")
        return tuple(ShardSpec(name, mode) for name, mode in modes.items())


@dataclass(frozen=True)
class DatasetSpec:
    """The validated datasets of a trainer."""

    plans: Mapping[str, PlanNode]
    shards: tuple[ShardSpec, ...]
    options: ExecutionOptions | None
    divider: DataConfig | None = None
    """The user's subclass of `DataConfig`, if it has a `configure` of its own."""

    @property
    def context(self) -> DataContext:
        """The context that their execution uses."""
        from paceline.data.context import DataContext

        context = DataContext.get_current()
        return context if self.options is None else replace(context, execution_options=self.options)

    def limit_to_cores(self, num_cores: int) -> DatasetSpec:
        """Return a copy limited to `num_cores`, unless the user has set a limit."""
        options = self.context.execution_options
        if options.resource_limits.cpu is not None:
            return self
        limits = replace(options.resource_limits, cpu=num_cores)
        return replace(self, options=replace(options, resource_limits=limits))

    def configure_iterators(self, world_size: int) -> list[dict[str, DataIterator]] | None:
        """Return the iterators of each rank that the user's `configure` makes; None if there is none."""
        if self.divider is None:
            return None
        from paceline.data.dataset import Dataset
        from paceline.data.iterator import DataIterator

        name = f"{type(self.divider).__name__}.configure()"
        hosts = [socket.gethostname()] * world_size
        datasets = {name: Dataset(plan) for name, plan in self.plans.items()}
        try:
            ranks = self.divider.configure(datasets, world_size, worker_handles=None, worker_node_ids=hosts)
        except Exception as error:
            error.add_note(f"raised by {name}")
            raise
        if not isinstance(ranks, Sequence) or len(ranks) != world_size:
            raise bad_value(f"the return value of {name}", f"a list of {world_size} dicts, one for each worker", ranks)
        for iterators in ranks:
            if not isinstance(iterators, Mapping) or not all(
                isinstance(key, str) and isinstance(value, DataIterator) for key, value in iterators.items()
            ):
                hint = "Dataset.streaming_split(n) and Dataset.iterator() make them"
                expected = "a dict of paceline.data.DataIterator objects by name"
                raise bad_value(f"every item that {name} returns", expected, iterators, hint)
        return [dict(iterators) for iterators in ranks]


def build_dataset_spec(datasets: Mapping[str, Any] | None, config: DataConfig) -> DatasetSpec | None:
    """Return the datasets as plans, or None if there are none. Raise on a value that is not a dataset."""
    if datasets is None:
        datasets = {}
    if not isinstance(datasets, Mapping) or not all(isinstance(name, str) for name in datasets):
        raise bad_value("datasets", "a dict of datasets by name", datasets)
    divider = config if type(config).configure is not DataConfig.configure else None
    shards = config.shards(tuple(datasets))
    if not datasets and divider is None:
        return None
    from paceline.data.exec.process_supervisor import PRELOAD
    from paceline.data.interop import as_dataset

    prewarm(*PRELOAD)
    plans = {name: as_dataset(_resolve_dataset(value), f"datasets[{name!r}]")._plan for name, value in datasets.items()}
    return DatasetSpec(plans, shards, _merge_options(config.execution_options, tuple(datasets)), divider)


def _resolve_dataset(value: Any) -> Any:
    """Call the value if it is a function that makes the dataset."""
    return value() if inspect.isroutine(value) or isinstance(value, functools.partial) else value


@dataclass(frozen=True)
class DataEndpoint:
    """Where the datasets of a running run are served."""

    address: str = ""
    read_stages: ReadStages | None = None
    inspector: DataInspector | None = None


@contextlib.contextmanager
def serve_datasets(spec: DatasetSpec | None) -> Iterator[DataEndpoint]:
    """Serve the rows to workers while the run is driven."""
    if spec is None or spec.divider is not None:
        yield DataEndpoint()
        return
    from paceline.data.exec.service import DataService

    with contextlib.closing(DataService(spec.context)) as service:
        for name, plan in spec.plans.items():
            service.add_dataset(name, plan)
        yield DataEndpoint(service.address, lambda: summarize_stages(service.all_stats()), service)


def summarize_stages(stats_by_dataset: Mapping[str, StreamStats]) -> tuple[tuple[StageUse, ...], bool]:
    """Return the usage of each stage of each dataset, and whether the workers of any dataset wait for rows."""
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
        for name, stats in stats_by_dataset.items()
        for stage in stats.stages
    )
    return stages, any(stage.limits for stage in stages)


def open_shard(context: WorkerContext, name: str) -> DataIterator:
    """Return this worker's shard of a dataset. Always the same object, because it knows which epoch is next."""
    begin = context.begin
    opened: DataIterator | None = context.shards.get(name)
    if opened is not None:
        return opened
    shards = {shard.name: shard for shard in begin.shards}
    shard = shards.get(name)
    if shard is None:
        raise KeyError(
            f"unknown dataset {name!r}; the trainer's datasets are {_format_names([*shards])}. "
            f"Pass it as TorchTrainer(..., datasets={{{name!r}: dataset}})"
        )
    key, iterator = _make_iterator(begin, shard)
    cursor = dict(begin.resume.data).get(key) if begin.resume is not None else None
    if cursor is not None and cursor.fingerprint != iterator.cursor().fingerprint:
        assert begin.resume is not None
        raise ValueError(
            f"cannot resume the dataset {name!r}: its files, rows or order changed since {begin.resume.name}\n\n"
            "hint: use another RunConfig(name=...) and resume_from_checkpoint=Checkpoint(...) to continue training "
            "with the new data from its beginning"
        )
    if cursor is not None:
        iterator.go_to(cursor)
    context.shards[name] = iterator
    context.positions[key] = iterator.cursor
    return iterator


def _make_iterator(begin: WorkerInit, shard: ShardSpec) -> tuple[str, DataIterator]:
    """Return the iterator of a shard at its beginning, and the name that its position is saved under."""
    from paceline.data.iterator import DataIterator
    from paceline.data.order.sharding import WorkerShard

    part = WorkerShard(begin.rank, begin.world_size, shard.mode)
    if begin.iterators is None:
        iterator = DataIterator(_open_feeds(begin, shard), part)
    else:
        iterator = cloudpickle.loads(begin.iterators)[shard.name]
        part = replace(part, mode=iterator._split.mode)
    warns = begin.rank == 0 and begin.iterators is None
    iterator._attach_to_worker(
        shard.name,
        global_batch_size=begin.global_batch_size,
        default_device=_worker_device,
        on_dropped=functools.partial(_warn_about_dropped_rows, shard.name, begin.world_size) if warns else None,
    )
    # The positions of the shards of one dataset are merged. Others mean something on their own rank only.
    is_own = begin.iterators is not None and (iterator._split != part or part.mode == "all")
    return f"{shard.name} (rank {begin.rank} of {begin.world_size})" if is_own else shard.name, iterator


def _warn_about_dropped_rows(name: str, num_workers: int, num_dropped: int, num_rows: int) -> None:
    log.warning(
        "each epoch leaves out %d of the %d rows of dataset %r, other ones each time, so that %d workers get equally "
        "many. DataConfig(exact=[%r]) leaves out none",
        num_dropped,
        num_rows,
        name,
        num_workers,
        name,
    )


def _open_feeds(begin: WorkerInit, shard: ShardSpec) -> Feeds:
    if begin.data_address.startswith(RAY_ROWS_PREFIX):
        from paceline.data.exec.ray.serving.feeds import RayFeeds

        return RayFeeds(begin.data_address, shard.name, begin.attempt)
    from paceline.data.exec.service_client import RemoteFeeds

    is_whole = shard.mode == "all"
    return RemoteFeeds(
        begin.data_address,
        shard.name,
        begin.rank,
        1 if is_whole else begin.world_size,
        shared=is_whole and begin.world_size > 1,
    )


def _worker_device() -> Any:
    """The worker's own device, which is what `device="auto"` means in a worker."""
    from paceline.train.torch.acceleration import get_device

    return get_device()


def _check_options(options: Any) -> None:
    if options is None:
        return
    from paceline.data.context import ExecutionOptions

    for each in options.values() if isinstance(options, Mapping) else (options,):
        if not isinstance(each, ExecutionOptions):
            raise bad_value("execution_options", "a paceline.data.ExecutionOptions, a dict of them or None", options)


def _merge_options(options: Any, names: Sequence[str]) -> ExecutionOptions | None:
    """Return one for all datasets. A resource is limited if it is for every dataset, to the sum of their limits."""
    if not isinstance(options, Mapping):
        return options  # type: ignore[no-any-return]
    from paceline.data.context import ExecutionOptions

    if unknown := [name for name in options if name not in names]:
        raise ValueError(
            f"unknown dataset {unknown[0]!r} in execution_options; the datasets are {_format_names(names)}"
        )
    limits = [options[name].resource_limits for name in names if name in options]
    if len(limits) < len(names) or not limits:
        return None
    merged = limits[0]
    for field_ in fields(merged):
        amounts = [getattr(each, field_.name) for each in limits]
        merged = replace(merged, **{field_.name: None if None in amounts else sum(amounts)})
    return ExecutionOptions(resource_limits=merged)


def _format_names(names: Sequence[str]) -> str:
    return ", ".join(map(repr, names)) or "none"
