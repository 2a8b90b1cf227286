"""The configuration of a run: frozen values, validated on construction."""

from __future__ import annotations

import dataclasses
import math
import os
import re
import secrets
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Self, TypeVar, get_args

from paceline._control.events import HangAction
from paceline._core.arguments import (
    bad_value,
    check_bool,
    check_choice,
    check_instance,
    check_int,
    check_number,
    find_selector_problem,
    is_int,
)
from paceline._core.call_errors import explain_calls
from paceline._core.engine_choice import check_engine
from paceline._core.frames import warn_caller
from paceline._core.settings import default_storage_path
from paceline._core.system import make_absolute
from paceline._storage.run_location import RunLocation, is_remote
from paceline.train.callbacks import Callback
from paceline.train.driver.stop_condition import parse_stop

if TYPE_CHECKING:
    from paceline.train.placement_group import PlacementGroupFactory
    from paceline.train.session import StorageContext

C = TypeVar("C")

_MIN_AMOUNT = 0.0001
"""Cluster resources are counted in units of 1/10,000."""

_WORKERS = "a non-negative integer or a range such as (1, 4)"
STRATEGIES = ("PACK", "SPREAD", "STRICT_PACK", "STRICT_SPREAD")


def _short_repr(config: Any) -> str:
    """Show only the fields that differ from the defaults."""
    fields = []
    for f in dataclasses.fields(config):
        value = getattr(config, f.name)
        default = f.default_factory() if f.default_factory is not dataclasses.MISSING else f.default
        if value != default and not (isinstance(value, float) and math.isnan(value)):
            fields.append(f"{f.name}={value!r}")
    return f"{type(config).__name__}({', '.join(fields)})"


def is_searched(scaling: ScalingConfig) -> bool:
    """Whether a value is a domain such as `tune.choice([1, 2])`: such a config is for `param_space` only."""
    resources = scaling.resources_per_worker
    values = [*vars(scaling).values(), *(resources.values() if isinstance(resources, Mapping) else ())]
    return any(type(value).__module__ == "paceline.tune.space.domains" for value in values)


def check_not_searched(scaling: ScalingConfig) -> ScalingConfig:
    if is_searched(scaling):
        hint = 'use Tuner(trainer, param_space={"scaling_config": ScalingConfig(...)})'
        raise ValueError(f"{scaling!r} must have no domains outside of a search\n\nhint: {hint}")
    return scaling


def config_class(cls: type[C]) -> type[C]:
    """Make a dataclass explain wrong arguments, and show only the fields that are set."""
    setattr(cls, "__repr__", _short_repr)  # noqa: B010
    return explain_calls(cls)


@config_class
@dataclass(frozen=True)
class ScalingConfig:
    """The number of workers, and the resources of each.

    `ScalingConfig(4, use_gpu=True)` means four workers with one GPU each. `num_workers=0` runs the function in this
    process, for a debugger. Without `resources_per_worker`, a worker gets one GPU if `use_gpu`, else one CPU.

    `num_workers=(2, 8)` is elastic: as many workers as fit, from two to eight. The run continues with fewer when it
    loses a slot. It grows at a checkpoint when resources are free again, at most every
    `elastic_resize_monitor_interval_s`. With `global_batch_size`, loaders from `prepare_data_loader` yield the same
    global batches in the same order for any number of workers; only worker counts that divide it are used.
    """

    num_workers: int | tuple[int, int] = 1
    use_gpu: bool = False
    resources_per_worker: Mapping[str, float] | None = None
    placement_strategy: str = "PACK"
    accelerator_type: str | None = None
    elastic_resize_monitor_interval_s: float = 60.0
    global_batch_size: int | None = None
    label_selector: Mapping[str, str] | Sequence[Mapping[str, str]] | None = None
    """On a cluster, the labels that a worker's node must have: `{"zone": "a"}`, `"!a"`, `"in(a,b)"`, `"!in(a,b)"`.
    A list has one dict per worker."""
    trainer_resources: Mapping[str, float] | None = None
    """For scripts written for Ray. It has no effect: the trainer runs in the script."""
    use_tpu: bool = False
    """Must be False: there is no support for TPUs."""
    topology: str | None = None

    def __post_init__(self) -> None:
        if is_searched(self):
            return  # A search checks the values that it draws.
        if isinstance(self.num_workers, list | tuple):
            object.__setattr__(self, "num_workers", _parse_worker_range(self.num_workers))
        elif not is_int(self.num_workers) or self.num_workers < 0:
            raise bad_value("num_workers", _WORKERS, self.num_workers)
        interval = self.elastic_resize_monitor_interval_s
        if interval != math.inf:
            check_number("elastic_resize_monitor_interval_s", interval, at_least=0)
        check_int("global_batch_size", self.global_batch_size, at_least=1, optional=True)
        if not self.sizes:
            expected = f"a multiple of num_workers={self.num_workers}"
            raise bad_value("global_batch_size", expected, self.global_batch_size)
        check_bool("use_gpu", self.use_gpu)
        if self.use_tpu or self.topology is not None:
            raise ValueError(
                f"use_tpu={self.use_tpu!r}, topology={self.topology!r}: workers on TPUs are not supported\n\n"
                'hint: JaxTrainer of paceline.train.jax with JaxConfig(platform="tpu") uses the TPUs of one machine'
            )
        check_instance("trainer_resources", self.trainer_resources, Mapping, "a dict such as {'CPU': 0}", optional=True)
        if any((self.trainer_resources or {}).values()):
            unused = dict(self.trainer_resources or {})
            warn_caller(f"trainer_resources={unused!r} has no effect here: the trainer runs in this script")
        check_choice("placement_strategy", self.placement_strategy, STRATEGIES)
        _check_labels(self.label_selector, self.num_workers)
        if not isinstance(self.accelerator_type, str | None) or self.accelerator_type == "":
            raise bad_value("accelerator_type", "a name such as 'A100' or None", self.accelerator_type)
        resources = self.resources_per_worker
        if resources is not None:
            check_instance("resources_per_worker", resources, Mapping, "a dict such as {'CPU': 2}")
            for name, amount in resources.items():
                check_resource("resources_per_worker", name, amount)
                if name == "object_store_memory":
                    label = f"resources_per_worker[{name!r}]"
                    raise ValueError(
                        f"{label} cannot be reserved: workers share the object store. Use 'memory' instead"
                    )
            gpus = resources.get("GPU", 0)
            if not self.use_gpu and gpus > 0:
                raise ValueError(
                    f"`use_gpu` is False but `GPU` was found in resources_per_worker={dict(resources)}: "
                    "set use_gpu=True or remove `GPU`"
                )
            if self.use_gpu and "GPU" in resources and gpus == 0:
                raise ValueError("`use_gpu` is True but resources_per_worker has `GPU` 0: remove one of them")
            if gpus > 1 and gpus != int(gpus):
                raise bad_value("resources_per_worker['GPU']", "below 1 or an integer", gpus)

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
        """Every number of workers that the run may have, in ascending order."""
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
    def num_tpus_per_worker(self) -> float:
        return 0.0

    @property
    def total_resources(self) -> dict[str, float]:
        """The resources of all workers together."""
        per_worker = {"CPU": self.num_cpus_per_worker, "GPU": self.num_gpus_per_worker}
        per_worker |= {k: float(v) for k, v in (self.resources_per_worker or {}).items()}
        return {name: amount * self.max_workers for name, amount in per_worker.items() if amount}

    @property
    def additional_resources_per_worker(self) -> dict[str, float]:
        """The resources of one worker beyond CPU and GPU."""
        return {k: float(v) for k, v in (self.resources_per_worker or {}).items() if k not in ("CPU", "GPU") and v}

    def as_placement_group_factory(self) -> PlacementGroupFactory:
        """Return one bundle per worker."""
        from paceline.train.placement_group import PlacementGroupFactory

        own = {"CPU": self.num_cpus_per_worker, "GPU": self.num_gpus_per_worker, **self.additional_resources_per_worker}
        bundle = {name: amount for name, amount in own.items() if amount}
        return PlacementGroupFactory([bundle] * max(1, self.max_workers), self.placement_strategy)

    @classmethod
    def from_placement_group_factory(cls, pgf: PlacementGroupFactory) -> Self:
        """Return the workers that have these bundles. A first bundle that differs is the trainer's, and left out."""
        bundles = list(pgf.bundles)
        if len(bundles) > 1 and bundles[0] != bundles[1]:
            del bundles[0]
        if any(bundle != bundles[0] for bundle in bundles):
            raise bad_value("bundles", "the same for every worker", bundles)
        resources, use_gpu = dict(bundles[0]), bundles[0].get("GPU", 0) > 0
        if not use_gpu:
            resources.pop("GPU", None)
        return cls(
            num_workers=len(bundles),
            use_gpu=use_gpu,
            resources_per_worker=resources,
            placement_strategy=pgf.strategy,
        )


@config_class
@dataclass(frozen=True)
class CheckpointConfig:
    """Which checkpoints are kept: the best `num_to_keep` by a reported metric, or the newest ones; all if None.

    The newest is always kept, even if it is not among the best. `checkpoint_score_attribute` may name a nested metric,
    as in `eval/loss`. A checkpoint whose metric is missing or nan ranks last in either order.

    `checkpoint_frequency` and `checkpoint_at_end` say when a trainer that saves the model itself does so:
    `XGBoostTrainer` and `LightGBMTrainer` without a function, every so many rounds, and a `tune.Trainable`. A train
    function reports its checkpoints, so other trainers refuse them.
    """

    num_to_keep: int | None = None
    checkpoint_score_attribute: str | None = None
    checkpoint_score_order: str = "max"
    checkpoint_frequency: int | None = 0
    checkpoint_at_end: bool | None = None
    _: KW_ONLY
    max_failed_saves: int | None = 0
    """How many consecutive saves may fail, with a warning, before `report()` raises: 0 for none, None for no limit."""
    on_backlog: Literal["wait", "skip"] = "wait"
    """What an ASYNC `report()` does while two earlier checkpoints of this worker, or one if memory is short, are not
    written yet: "wait" for the first, or "skip" the one that waits (if there is only one, the new one) on all ranks.
    """

    def __post_init__(self) -> None:
        check_int("num_to_keep", self.num_to_keep, at_least=1, optional=True)
        check_int("max_failed_saves", self.max_failed_saves, at_least=0, optional=True)
        check_int("checkpoint_frequency", self.checkpoint_frequency, at_least=0, optional=True)
        check_bool("checkpoint_at_end", self.checkpoint_at_end, optional=True)
        check_choice("on_backlog", self.on_backlog, ("wait", "skip"))
        check_choice("checkpoint_score_order", self.checkpoint_score_order, ("max", "min"))
        attribute = self.checkpoint_score_attribute
        check_instance("checkpoint_score_attribute", attribute, str, "the name of a metric", optional=True)


CheckpointStrategy = CheckpointConfig
"""The name in Ray 1.x."""


@config_class
@dataclass(frozen=True)
class FailureConfig:
    """How to handle workers that fail or hang.

    The first three fields limit restarts from the last checkpoint: 0 means never, -1 means no limit. `max_failures`
    counts failures of the code or its environment: exceptions, out of memory, killed processes, storage errors, hangs.
    An exception raised twice at the same place is not retried a third time. `max_preemption_failures` counts workers
    whose machine was preempted. `controller_failure_limit` counts failures to start workers; three of those in a row
    end the run in any case.

    A rank hangs if it stays at one place and shows no sign of life for `hang_timeout_s` (None: learned from the run's
    own reports, at least 30 s). `hang_action`: "warn" reports the hang, "restart" also restarts the workers, "fail"
    ends the run.

    With `fail_fast=True` the first failure of any kind ends the run; with `"raise"`, `fit()` raises the worker's own
    exception. `preemption_grace_s` is how long the machine stays after SIGTERM or SIGUSR1 (None: see
    `PACELINE_PREEMPTION_GRACE_S`).
    """

    max_failures: int = 0
    fail_fast: bool | str = False
    _: KW_ONLY
    max_preemption_failures: int = -1
    controller_failure_limit: int = -1
    hang_timeout_s: float | None = None
    hang_action: HangAction = "warn"
    preemption_grace_s: float | None = None
    relax_collectives_on_preemption: bool = False
    """Must be False: all ranks stop at the same report, so that its checkpoint is complete."""

    def __post_init__(self) -> None:
        for name in ("max_failures", "max_preemption_failures", "controller_failure_limit"):
            limit = getattr(self, name)
            if not is_int(limit) or limit < -1:
                raise bad_value(name, "a non-negative integer, or -1 for no limit", limit)
        if self.hang_timeout_s != math.inf:
            check_number("hang_timeout_s", self.hang_timeout_s, above=0, optional=True)
        check_choice("hang_action", self.hang_action, get_args(HangAction))
        check_choice("fail_fast", self.fail_fast, (True, False, "raise"))
        if self.fail_fast and self.max_failures:
            raise ValueError(
                f"max_failures={self.max_failures} and fail_fast={self.fail_fast!r} contradict each other: "
                "what ends with the first failure retries nothing"
            )
        check_number("preemption_grace_s", self.preemption_grace_s, at_least=0, optional=True)
        if self.relax_collectives_on_preemption:
            raise ValueError(
                "relax_collectives_on_preemption=True is not supported: after a preemption notice all ranks stop at "
                "the same report, so that the checkpoint of that report is complete"
            )


LOG_LEVELS = ("DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL")


@config_class
@dataclass(frozen=True)
class LoggingConfig:
    """How much a run prints and logs: WARNING and above only problems, INFO one line per event, DEBUG every report."""

    log_level: str = "INFO"

    def __post_init__(self) -> None:
        level = self.log_level.upper() if isinstance(self.log_level, str) else self.log_level
        object.__setattr__(self, "log_level", check_choice("log_level", level, LOG_LEVELS))


@config_class
@dataclass(frozen=True)
class SyncConfig:
    """What becomes of the files in a trial's working directory, its artifacts.

    With a `storage_path` on a disk they are in the trial's directory anyway. For a search in a store,
    `sync_artifacts=True` uploads them to the trial's `artifacts/` when its function ends.
    """

    sync_period: int = 300
    sync_timeout: int = 1800
    sync_artifacts: bool = False
    sync_artifacts_on_checkpoint: bool = True

    def __post_init__(self) -> None:
        check_bool("sync_artifacts", self.sync_artifacts)
        default = SyncConfig
        for name in ("sync_period", "sync_timeout", "sync_artifacts_on_checkpoint"):
            if (value := getattr(self, name)) != getattr(default, name):
                instead = "artifacts are uploaded when the function of a trial ends"
                warn_caller(f"{name}={value!r} has no effect here: {instead}")


@config_class
@dataclass(frozen=True)
class RunConfig:
    """The name of the run, and where it is stored.

    A run is the directory `storage_path/name`, on this machine or in a store: `s3://bucket/runs`, `gs://...`,
    `az://...`, or a path on `storage_filesystem`, a filesystem of `pyarrow.fs` or fsspec. Running a script again with
    the same two values resumes that run; without a name, each run gets a new one. Nothing is written before `fit()`.

    `stop` ends the run at the first report that reaches it: a dict of metrics and their limits, where
    `training_iteration` is the number of the report, a function of an id and the metrics, or a `Stopper`. `fit()` then
    returns. `verbose` says how much is printed: 0 only errors, 1 a line per event, 2 and 3 also every report; None
    follows `logging_config`, then `PACELINE_VERBOSITY`. `log_to_file`: write the output of rank 0 also to `stdout` and
    `stderr` in the run's directory, or to these one or two files there. `progress_reporter` is for a search.
    """

    name: str | None = None
    storage_path: str | os.PathLike[str] | None = None
    failure_config: FailureConfig = field(default_factory=FailureConfig)
    checkpoint_config: CheckpointConfig = field(default_factory=CheckpointConfig)
    callbacks: Sequence[Callback] = ()
    storage_filesystem: Any = None
    engine: str | None = None
    """`"local"` for this machine or `"ray"` for a cluster; None: see `paceline.init`."""
    worker_runtime_env: Mapping[str, Any] | None = None
    """The environment of the workers, in the format of Ray's `runtime_env`. On one machine, only its `env_vars`."""
    detached: bool = False
    """On a cluster, drive the run there, so that it continues when this script or its machine is gone."""
    on_stop: str = "raise"
    """After `paceline stop`, `fit()` raises `TrainingInterrupt`, or with `"return"` returns what there is."""
    if_exists: str | None = None
    """If there is a run of this name: `"resume"` it, and return its result if it is complete, `"fail"`, or begin a
    `"new"` one beside it, as `name-2`. None resumes, but raises `RunExistsError` for a complete run of other code."""
    fork_from: Any = None
    """A new run starts from this `Checkpoint`, or from the newest one of this run: its path or its `Result`."""
    record_source: bool = True
    """Store the source of the script and the function with the run, without what looks like a secret."""
    stop: Mapping[str, Any] | Callable[[str, Mapping[str, Any]], bool] | Sequence[Any] | None = None
    verbose: int | None = None
    progress_reporter: Any = None
    log_to_file: bool | str | tuple[str, str] = False
    sync_config: SyncConfig | None = None
    """For a search: see `SyncConfig`. A run writes its files to `storage_path` itself."""
    logging_config: LoggingConfig | None = None

    def __post_init__(self) -> None:
        check_engine("engine", self.engine)
        expected = "a dict such as {'env_vars': ...}"
        check_instance("worker_runtime_env", self.worker_runtime_env, Mapping, expected, optional=True)
        check_bool("detached", self.detached)
        check_choice("on_stop", self.on_stop, ("raise", "return"))
        check_choice("if_exists", self.if_exists, ("resume", "fail", "new", None))
        check_bool("record_source", self.record_source)
        _check_fork(self.fork_from)
        object.__setattr__(self, "name", self.name if self.name is not None else _generate_run_name())
        object.__setattr__(self, "storage_path", _resolve_storage_path(self.storage_path, self.storage_filesystem))
        _check_filesystem(self.storage_filesystem)
        for name, kind in (("failure_config", FailureConfig), ("checkpoint_config", CheckpointConfig)):
            object.__setattr__(self, name, coerce_config(kind, getattr(self, name), name))
        check_instance("callbacks", self.callbacks, Iterable, "a list of callbacks", optional=True)
        object.__setattr__(self, "callbacks", tuple(self.callbacks or ()))
        assert self.name is not None
        if not isinstance(self.name, str) or not re.fullmatch(r"[^/\0]+", self.name) or self.name in (".", ".."):
            raise bad_value("name", "a valid directory name", self.name)
        check_callbacks(self.callbacks)
        parse_stop(self.stop)  # Raises for an invalid value.
        check_choice("verbose", self.verbose, (0, 1, 2, 3, True, False, None))
        check_reporter("progress_reporter", self.progress_reporter)
        _parse_log_files(self.log_to_file)
        if self.sync_config is not None:
            object.__setattr__(self, "sync_config", coerce_config(SyncConfig, self.sync_config, "sync_config"))
        if self.logging_config is not None:
            checked = coerce_config(LoggingConfig, self.logging_config, "logging_config")
            object.__setattr__(self, "logging_config", checked)

    @property
    def verbosity(self) -> int | None:
        """How much to print, as in `Settings.verbosity`; None means the setting."""
        if self.verbose is not None:
            return min(int(self.verbose), 2)
        level = self.logging_config.log_level if self.logging_config is not None else "INFO"
        return {"DEBUG": 2, "INFO": None}.get(level, 0)

    @property
    def log_files(self) -> tuple[str, ...]:
        """The files in the run's directory for the standard output and error of rank 0; empty for none."""
        return _parse_log_files(self.log_to_file)

    @property
    def storage_context(self) -> StorageContext:
        """Where the run is stored, as `TrainContext.get_storage()` returns it in a worker."""
        from paceline.train.session import StorageContext

        return StorageContext(*self.location.open_run_store_for_reading().locate_run())

    @property
    def location(self) -> RunLocation:
        """Where the run is stored."""
        assert self.name is not None
        assert self.storage_path is not None
        return RunLocation(os.fspath(self.storage_path), self.name, self.storage_filesystem)

    @property
    def path(self) -> Path:
        """The run's directory on this machine; for a run in a store, its local spool."""
        return self.location.layout.root


def _check_fork(source: Any) -> None:
    if source is None or isinstance(source, str | os.PathLike):
        return
    from paceline.train.checkpoint import Checkpoint
    from paceline.train.result import Result

    check_instance("fork_from", source, (Checkpoint, Result), "the path of a run, a Result or a Checkpoint")


def coerce_config(kind: type[Any], value: Any, argument: str) -> Any:
    """Return a configuration object for the user's value: None means the defaults, a dict gives the fields."""
    if value is None:
        return kind()
    if isinstance(value, kind):
        return value
    if isinstance(value, Mapping):
        return kind(**value)
    package = ".".join(kind.__module__.split(".")[:2])
    raise ValueError(
        f"Invalid `{kind.__name__}` type: {argument} must be a {package}.{kind.__name__} or a dict of its fields, "
        f"got {value!r:.200}"
    )


def _parse_log_files(value: Any) -> tuple[str, ...]:
    if value is False or value is None:
        return ()
    files = ("stdout", "stderr") if value is True else (value, value) if isinstance(value, str) else value
    expected = "True, False, the name of a file in the run's directory, or two such names"
    if not isinstance(files, list | tuple) or len(files) != 2 or not all(isinstance(each, str) for each in files):
        raise bad_value("log_to_file", expected, value)
    for name in files:
        if not name or name[0] == "." or "/" in name or "\0" in name:
            raise bad_value("log_to_file", expected, value)
    return tuple(files)


def check_reporter(name: str, value: Any) -> None:
    """Check a reporter by its methods: a class of the user's need not be a `ProgressReporter`."""
    if value is None or all(callable(getattr(value, method, None)) for method in ("should_report", "report")):
        if isinstance(value, type):
            hint = f"{name}={value.__name__}()"
            raise bad_value(name, "an instance of a ProgressReporter", value, hint)
        return
    raise bad_value(name, "a ProgressReporter such as CLIReporter() or None", value)


def check_callbacks(callbacks: Iterable[Any]) -> None:
    expected = "a UserCallback, TrainingCallback, LoggerCallback or OpenTelemetryCallback of paceline.train"
    for callback in callbacks:
        check_instance("every item of callbacks", callback, get_args(Callback), expected)
        hooks = [name for name in dir(callback) if name.startswith(_SEARCH_HOOKS)]
        if hooks and not (getattr(callback, "_is_for_searches", False) or hasattr(callback, "_has_trial_hooks")):
            raise ValueError(
                f"{type(callback).__name__}.{hooks[0]}() would never be called: only a callback of a search has it\n\n"
                "hint: subclass paceline.tune.Callback, or LoggerCallback of paceline.tune.logger"
            )


_SEARCH_HOOKS = ("on_trial_", "log_trial_", "on_step_", "on_experiment_end")


def check_resource(argument: str, name: Any, amount: Any) -> None:
    if not isinstance(name, str) or not name:
        raise bad_value(f"a key of {argument}", "the name of a resource", name)
    label = f"{argument}[{name!r}]"
    check_number(label, amount, at_least=0)
    if 0 < amount < _MIN_AMOUNT:
        raise bad_value(label, f"0 or at least {_MIN_AMOUNT}", amount)


def _check_labels(selector: Any, num_workers: int | tuple[int, int]) -> None:
    if selector is None:
        return
    selectors = [selector] if isinstance(selector, Mapping) else selector
    if not isinstance(selectors, list | tuple) or not all(isinstance(labels, Mapping) for labels in selectors):
        raise bad_value("label_selector", "a dict of labels such as {'zone': 'a'} or a list of such dicts", selector)
    if selectors is selector and len(selectors) != num_workers:
        raise ValueError(
            f"label_selector has {len(selectors)} dicts for num_workers={num_workers!r}: "
            "pass one dict per worker of a fixed number, or one dict for all"
        )
    for labels in selectors:
        if problem := find_selector_problem(labels):
            raise ValueError(f"label_selector={selector!r}: {problem}")


def _parse_worker_range(bounds: Any) -> tuple[int, int]:
    if len(bounds) != 2 or not all(map(is_int, bounds)) or not 1 <= bounds[0] <= bounds[1]:
        raise bad_value("num_workers", _WORKERS, bounds)
    return bounds[0], bounds[1]


def _resolve_storage_path(path: Any, filesystem: Any) -> str:
    if path is None:
        return default_storage_path() if filesystem is None else "paceline_results"
    check_instance("storage_path", path, (str, os.PathLike), "a path")
    text: str = os.fspath(path).removeprefix("file://")
    return text if is_remote(text, filesystem) else str(Path(make_absolute(text)))


def _check_filesystem(filesystem: Any) -> None:
    """Check by duck typing, so that a configuration imports neither pyarrow nor fsspec."""
    if filesystem is not None and not (hasattr(filesystem, "type_name") or hasattr(filesystem, "_strip_protocol")):
        raise bad_value("storage_filesystem", "a pyarrow.fs.FileSystem or an fsspec filesystem", filesystem)


def _generate_run_name() -> str:
    return f"run-{time.strftime('%Y-%m-%d_%H-%M-%S')}-{secrets.token_hex(2)}"
