"""How a run is asked for: frozen values, checked once, where they are given."""

from __future__ import annotations

import dataclasses
import functools
import math
import os
import re
import secrets
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from pathlib import Path
from typing import Any, TypeVar, get_args

from paceline._control.events import HangAction
from paceline._core.choice import check_engine
from paceline._core.labels import problem as labels_problem
from paceline._core.settings import default_storage_path
from paceline._storage.home import Home, is_remote
from paceline.train.callbacks import Callback

C = TypeVar("C")

_REMOVED = {
    "trainer_resources": "the trainer runs in the driver and takes no resources of its own",
    "checkpoint_frequency": "report a checkpoint when you want one",
    "checkpoint_at_end": "report a checkpoint before the function returns",
    "fail_fast": "use max_failures=0, which is the default",
    "sync_config": "files go to storage_path directly; nothing is synced afterwards",
    "verbose": "set PACELINE_VERBOSITY to 0, 1 or 2",
    "stop": "return from the train function when it is done",
    "progress_reporter": "use callbacks",
    "log_to_file": "all output of every worker is in result.log_dir",
}
"""Arguments of Ray Train's older configurations, and what to do instead."""

_LEAST_AMOUNT = 0.0001
"""Resources of a cluster are counted in ten-thousandths."""

_STRATEGIES = ("PACK", "SPREAD", "STRICT_PACK", "STRICT_SPREAD")


def _named_arguments(cls: type[C]) -> type[C]:
    """Let a configuration refuse an argument it does not have by saying which ones it has."""
    init = cls.__init__

    @functools.wraps(init)
    def checked(self: C, *args: Any, **kwargs: Any) -> None:
        allowed = [f.name for f in dataclasses.fields(cls)]  # type: ignore[arg-type]
        for name in kwargs:
            if name in _REMOVED and name not in allowed:
                raise DeprecationWarning(f"{cls.__name__} no longer has the argument {name!r}: {_REMOVED[name]}")
            if name not in allowed:
                raise TypeError(f"{cls.__name__} has no argument {name!r}: it has {', '.join(allowed)}")
        init(self, *args, **kwargs)

    setattr(cls, "__init__", checked)  # noqa: B010  an assignment would have to lie about its type
    return cls


@_named_arguments
@dataclass(frozen=True)
class ScalingConfig:
    """How many workers, and what each of them gets.

    `ScalingConfig(4, use_gpu=True)` is four workers with a GPU each. `num_workers=0` runs the function in this very
    process, for a debugger. Without `resources_per_worker` a worker gets one GPU if `use_gpu`, else one CPU.

    `num_workers=(2, 8)` is as many as there is room for, from two to eight: the run goes on with fewer when a place is
    lost, and takes in more at a checkpoint when there is room again, at most every `elastic_resize_monitor_interval_s`.
    With `global_batch_size`, loaders that `prepare_data_loader` made give the same global batches in the same order
    whatever the number of workers; only numbers that divide it are used.
    """

    num_workers: int | tuple[int, int] = 1
    use_gpu: bool = False
    resources_per_worker: Mapping[str, float] | None = None
    placement_strategy: str = "PACK"
    accelerator_type: str | None = None
    elastic_resize_monitor_interval_s: float = 60.0
    global_batch_size: int | None = None
    label_selector: Mapping[str, str] | Sequence[Mapping[str, str]] | None = None
    """On a cluster, the labels that the node of a worker has to have: `{"zone": "a"}`, `"!a"`, `"in(a,b)"`,
    `"!in(a,b)"`. A list has one dict for each worker."""

    def __post_init__(self) -> None:
        if isinstance(self.num_workers, list | tuple):
            object.__setattr__(self, "num_workers", _elastic(self.num_workers))
        elif isinstance(self.num_workers, bool) or not isinstance(self.num_workers, int):
            raise ValueError(
                f"num_workers={self.num_workers!r} is neither a whole number of workers nor the fewest and the most "
                "of them, such as (1, 4)"
            )
        elif self.num_workers < 0:
            raise ValueError(f"num_workers={self.num_workers} is negative: use 1 or more, or 0 for this process")
        interval = self.elastic_resize_monitor_interval_s
        if isinstance(interval, bool) or not isinstance(interval, int | float) or not interval >= 0:
            raise ValueError(f"elastic_resize_monitor_interval_s={interval!r} is not a number of seconds of 0 or more")
        batch = self.global_batch_size
        if batch is not None and (isinstance(batch, bool) or not isinstance(batch, int) or batch < 1):
            raise ValueError(f"global_batch_size={batch!r} is not a whole number of 1 or more, or None")
        if not self.sizes:
            raise ValueError(
                f"global_batch_size={batch} cannot be divided among num_workers={self.num_workers}: "
                "use a multiple of the number of workers"
            )
        if not isinstance(self.use_gpu, bool):
            raise ValueError(f"use_gpu={self.use_gpu!r} is not True or False")
        if self.placement_strategy not in _STRATEGIES:
            raise ValueError(f"placement_strategy={self.placement_strategy!r} is not one of {', '.join(_STRATEGIES)}")
        _check_labels(self.label_selector, self.num_workers)
        if not isinstance(self.accelerator_type, str | None) or self.accelerator_type == "":
            raise ValueError(f"accelerator_type={self.accelerator_type!r} is not the name of one, such as 'A100'")
        resources = self.resources_per_worker
        if resources is not None:
            if not isinstance(resources, Mapping):
                raise ValueError(f"resources_per_worker={resources!r} is not a dict such as {{'CPU': 2}}")
            for name, amount in resources.items():
                _check_resource(name, amount)
            gpus = resources.get("GPU", 0)
            if not self.use_gpu and gpus > 0:
                raise ValueError(
                    f"`use_gpu` is False but `GPU` was found in resources_per_worker={dict(resources)}: "
                    "set use_gpu=True or drop `GPU`"
                )
            if self.use_gpu and "GPU" in resources and gpus == 0:
                raise ValueError("`use_gpu` is True but resources_per_worker gives `GPU` 0: drop one of the two")
            if gpus > 1 and gpus != int(gpus):
                raise ValueError(f"resources_per_worker['GPU']={gpus} is neither below 1 nor a whole number")

    @property
    def elasticity_enabled(self) -> bool:
        return isinstance(self.num_workers, tuple)

    @property
    def min_workers(self) -> int:
        return self.num_workers[0] if isinstance(self.num_workers, tuple) else self.num_workers

    @property
    def max_workers(self) -> int:
        return self.num_workers[1] if isinstance(self.num_workers, tuple) else self.num_workers

    @property
    def sizes(self) -> tuple[int, ...]:
        """Every number of workers that the run may have, in rising order."""
        sizes = range(max(1, self.min_workers), max(1, self.max_workers) + 1)
        return tuple(size for size in sizes if self.global_batch_size is None or self.global_batch_size % size == 0)

    @property
    def num_gpus_per_worker(self) -> float:
        if not self.use_gpu:
            return 0.0
        return float((self.resources_per_worker or {}).get("GPU", 1))

    @property
    def num_cpus_per_worker(self) -> float:
        if self.resources_per_worker is None:
            return 0.0 if self.use_gpu else 1.0
        return float(self.resources_per_worker.get("CPU", 0))

    @property
    def total_resources(self) -> dict[str, float]:
        """What all workers together ask for."""
        per_worker = {"CPU": self.num_cpus_per_worker, "GPU": self.num_gpus_per_worker}
        per_worker |= {k: float(v) for k, v in (self.resources_per_worker or {}).items()}
        return {name: amount * self.max_workers for name, amount in per_worker.items() if amount}

    @property
    def additional_resources_per_worker(self) -> dict[str, float]:
        """What a worker asks for beyond CPU and GPU."""
        return {k: float(v) for k, v in (self.resources_per_worker or {}).items() if k not in ("CPU", "GPU") and v}

    def __repr__(self) -> str:
        return _short_repr(self)


@_named_arguments
@dataclass(frozen=True)
class CheckpointConfig:
    """Which checkpoints stay: the best `num_to_keep` by a reported metric, or the newest ones; all if None.

    The newest is always kept, even when it is not among the best. `checkpoint_score_attribute` may name a nested
    metric, as in `eval/loss`. A checkpoint without that metric, or with nan in it, ranks last in either order.
    """

    num_to_keep: int | None = None
    checkpoint_score_attribute: str | None = None
    checkpoint_score_order: str = "max"
    _: KW_ONLY
    max_failed_saves: int | None = 0
    """How many saves in a row may fail, loudly, before `report()` raises: 0 none, None any number."""

    def __post_init__(self) -> None:
        if self.num_to_keep is not None and (
            isinstance(self.num_to_keep, bool) or not isinstance(self.num_to_keep, int) or self.num_to_keep <= 0
        ):
            raise ValueError(f"num_to_keep={self.num_to_keep!r} is not 1 or more, or None to keep all")
        if self.max_failed_saves is not None and (
            isinstance(self.max_failed_saves, bool)
            or not isinstance(self.max_failed_saves, int)
            or self.max_failed_saves < 0
        ):
            raise ValueError(f"max_failed_saves={self.max_failed_saves!r} is not 0 or more, or None for no limit")
        if self.checkpoint_score_order not in ("max", "min"):
            raise ValueError(f"checkpoint_score_order={self.checkpoint_score_order!r} is neither 'max' nor 'min'")
        if not isinstance(self.checkpoint_score_attribute, str | None):
            raise ValueError(
                f"checkpoint_score_attribute={self.checkpoint_score_attribute!r} is not the name of a metric"
            )

    def __repr__(self) -> str:
        return _short_repr(self)


CheckpointStrategy = CheckpointConfig
"""What it was called in Ray 1.x."""


@_named_arguments
@dataclass(frozen=True)
class FailureConfig:
    """What is done about workers that fail, and about those that hang.

    The first three are how often workers may be restarted from the last checkpoint: 0 never, -1 without limit.
    `max_failures` counts what the code or its environment did: exceptions, memory, deaths, storage, hangs. An exception
    that comes twice at the same place is not tried a third time. `max_preemption_failures` counts workers whose machine
    was taken away, and `controller_failure_limit` failures to start workers; three of those in a row end the run in any
    case.

    A rank hangs if it stands at one place and gives no sign of life for `hang_timeout_s` (None: learned from the run's
    own reports, at least 30 s). `hang_action`: "warn" says so, "restart" also restarts the workers, "fail" ends the
    run.
    """

    max_failures: int = 0
    _: KW_ONLY
    max_preemption_failures: int = -1
    controller_failure_limit: int = -1
    hang_timeout_s: float | None = None
    hang_action: HangAction = "warn"

    def __post_init__(self) -> None:
        for name in ("max_failures", "max_preemption_failures", "controller_failure_limit"):
            limit = getattr(self, name)
            if isinstance(limit, bool) or not isinstance(limit, int) or limit < -1:
                raise ValueError(f"{name}={limit!r} is not 0 or more, or -1 for no limit")
        timeout_s = self.hang_timeout_s
        is_number = isinstance(timeout_s, int | float) and not isinstance(timeout_s, bool)
        if timeout_s is not None and not (is_number and timeout_s > 0):
            raise ValueError(f"hang_timeout_s={timeout_s!r} is not a number of seconds above 0, or None to learn it")
        if self.hang_action not in get_args(HangAction):
            raise ValueError(f"hang_action={self.hang_action!r} is not one of {', '.join(get_args(HangAction))}")

    def __repr__(self) -> str:
        return _short_repr(self)


@_named_arguments
@dataclass(frozen=True)
class RunConfig:
    """What the run is called and where it is kept.

    A run is the directory `storage_path/name`, on this machine or in a store: `s3://bucket/runs`, `gs://...`,
    `az://...`, or a path on `storage_filesystem`, one of `pyarrow.fs` or of fsspec. A script that runs again with the
    same two continues that run; without a name each run gets a new one. Nothing is touched before `fit()`.
    """

    name: str | None = None
    storage_path: str | os.PathLike[str] | None = None
    failure_config: FailureConfig = field(default_factory=FailureConfig)
    checkpoint_config: CheckpointConfig = field(default_factory=CheckpointConfig)
    callbacks: Sequence[Callback] = ()
    storage_filesystem: Any = None
    engine: str | None = None
    """`"local"`, this machine, or `"ray"`, a cluster; None: see `paceline.init`."""
    worker_runtime_env: Mapping[str, Any] | None = None
    """On a cluster, the environment of the workers' processes, as Ray's `runtime_env` has it."""
    detached: bool = False
    """On a cluster, drive the run there, so that it goes on when this script or its machine is gone."""

    def __post_init__(self) -> None:
        check_engine("engine", self.engine)
        if self.worker_runtime_env is not None and not isinstance(self.worker_runtime_env, Mapping):
            raise ValueError(
                f"worker_runtime_env={self.worker_runtime_env!r} is not a dict such as {{'env_vars': ...}}"
            )
        if not isinstance(self.detached, bool):
            raise ValueError(f"detached={self.detached!r} is not True or False")
        object.__setattr__(self, "name", self.name if self.name is not None else _new_name())
        object.__setattr__(self, "storage_path", _storage_path(self.storage_path, self.storage_filesystem))
        _check_filesystem(self.storage_filesystem)
        for name, kind in (("failure_config", FailureConfig), ("checkpoint_config", CheckpointConfig)):
            object.__setattr__(self, name, as_config(kind, getattr(self, name), name))
        if not isinstance(self.callbacks, Iterable | None):
            raise ValueError(f"callbacks={self.callbacks!r} is not a list: a single one is callbacks=[...]")
        object.__setattr__(self, "callbacks", tuple(self.callbacks or ()))
        assert self.name is not None
        if not isinstance(self.name, str) or not re.fullmatch(r"[^/\0]+", self.name) or self.name in (".", ".."):
            raise ValueError(f"name={self.name!r} cannot be the name of a directory")
        for callback in self.callbacks:
            if not isinstance(callback, Callback):
                raise ValueError(
                    f"callbacks holds {callback!r}, which is not a paceline.train.UserCallback, TrainingCallback, "
                    "LoggerCallback or OpenTelemetryCallback"
                )

    @property
    def home(self) -> Home:
        """Where the run is kept."""
        assert self.name is not None
        assert self.storage_path is not None
        return Home(os.fspath(self.storage_path), self.name, self.storage_filesystem)

    @property
    def path(self) -> Path:
        """The run's directory on this machine: all of it, or where a run that is kept in a store has its spool."""
        return self.home.layout.root

    def __repr__(self) -> str:
        return _short_repr(self)


def as_config(kind: type[Any], value: Any, argument: str) -> Any:
    """A configuration object from what the user gave: None for the defaults, or a dict of its fields."""
    if value is None:
        return kind()
    if isinstance(value, kind):
        return value
    if isinstance(value, Mapping):
        return kind(**value)
    raise ValueError(
        f"Invalid `{kind.__name__}` type: {argument}={value!r} is a {type(value).__name__}; "
        f"use paceline.train.{kind.__name__} or a dict of its fields"
    )


def _check_resource(name: Any, amount: Any) -> None:
    if not isinstance(name, str) or not name:
        raise ValueError(f"resources_per_worker has {name!r}, which is not the name of a resource")
    where = f"resources_per_worker[{name!r}]={amount!r}"
    if isinstance(amount, bool) or not isinstance(amount, int | float) or not 0 <= amount < math.inf:
        raise ValueError(f"{where} is not a number of 0 or more")
    if 0 < amount < _LEAST_AMOUNT:
        raise ValueError(f"{where} is too little: the least amount is {_LEAST_AMOUNT}")
    if name == "object_store_memory":
        raise ValueError(f"{where} cannot be reserved for workers: objects share it. Use 'memory' for their own")


def _check_labels(selector: Any, num_workers: int | tuple[int, int]) -> None:
    if selector is None:
        return
    each = [selector] if isinstance(selector, Mapping) else selector
    if not isinstance(each, list | tuple) or not all(isinstance(labels, Mapping) for labels in each):
        raise ValueError(
            f"label_selector={selector!r} is neither a dict of labels such as {{'zone': 'a'}} nor a list of them"
        )
    if each is selector and len(each) != num_workers:
        raise ValueError(
            f"label_selector has {len(each)} dicts for num_workers={num_workers!r}: "
            "give one dict for each worker of a fixed number, or one dict for all"
        )
    for labels in each:
        if found := labels_problem(labels):
            raise ValueError(f"label_selector={selector!r}: {found}")


def _elastic(bounds: Any) -> tuple[int, int]:
    """The fewest and the most workers."""
    whole = len(bounds) == 2 and all(isinstance(n, int) and not isinstance(n, bool) for n in bounds)
    if not whole or not 1 <= bounds[0] <= bounds[1]:
        raise ValueError(
            f"num_workers={bounds!r} is not the fewest and the most workers, such as (1, 4), with 1 or more of them"
        )
    return bounds[0], bounds[1]


def _storage_path(path: Any, filesystem: Any) -> str:
    if path is None:
        if filesystem is not None:
            raise ValueError("storage_filesystem is given without storage_path: say where on it runs are kept")
        return default_storage_path()
    if not isinstance(path, str | os.PathLike):
        raise ValueError(f"storage_path={path!r} is not a path")
    text = os.fspath(path)
    text = text.removeprefix("file://")
    if is_remote(text, filesystem):
        return text
    return str(Path(text).expanduser().absolute())


def _check_filesystem(filesystem: Any) -> None:
    """By what it can do: neither pyarrow nor fsspec is imported for a configuration."""
    if filesystem is not None and not (hasattr(filesystem, "type_name") or hasattr(filesystem, "_strip_protocol")):
        raise ValueError(
            f"storage_filesystem={filesystem!r} is neither a pyarrow.fs.FileSystem nor a filesystem of fsspec"
        )


def _new_name() -> str:
    return f"run-{time.strftime('%Y-%m-%d_%H-%M-%S')}-{secrets.token_hex(2)}"


def _short_repr(config: Any) -> str:
    """Only what differs from the defaults."""
    shown = []
    for f in dataclasses.fields(config):
        value = getattr(config, f.name)
        default = f.default_factory() if f.default_factory is not dataclasses.MISSING else f.default
        same = value == default or (isinstance(value, float) and math.isnan(value))
        if not same:
            shown.append(f"{f.name}={value!r}")
    return f"{type(config).__name__}({', '.join(shown)})"
