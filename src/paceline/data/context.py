"""Execution settings for datasets: one value per process, `DataContext.get_current()`."""

from __future__ import annotations

import copy
import math
import operator
import os
import uuid
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, fields
from functools import reduce
from typing import Any, ClassVar

from paceline._core import system
from paceline._core.arguments import bad_value, check_instance, is_number

_RAY_SETTINGS = """
    actor_init_max_retries actor_init_retry_on_errors actor_locality_enabled actor_prefetcher_enabled
    actor_task_retry_on_errors arrow_fixed_shape_tensor_format autoscaling_config batch_to_block_arrow_format
    block_splitting_enabled checkpoint_config custom_execution_callback_classes dataset_logger_id
    decoding_size_estimation default_hash_shuffle_parallelism default_map_logical_memory_enabled delta_config
    downstream_capacity_backpressure_ratio eager_free enable_arrow_backed_pandas_conversion enable_auto_log_stats
    enable_dynamic_output_queue_size_backpressure enable_fallback_to_arrow_object_ext_type
    enable_get_object_locations_for_metrics enable_operator_progress_bars enable_pandas_block enable_per_node_metrics
    enable_progress_bar_name_truncation enable_progress_bars enable_rich_progress_bars enable_tensor_extension_casting
    enforce_schemas exclude_resources execution_callback_classes execution_no_progress_timeout_s
    gpu_shuffle_num_actors gpu_shuffle_rmm_pool_size gpu_shuffle_setup_timeout_s gpu_shuffle_spill_memory_limit
    hash_aggregate_operator_actor_num_cpus_override hash_shuffle_aggregator_health_warning_interval_s
    hash_shuffle_compression hash_shuffle_operator_actor_num_cpus_override hash_shuffle_reduce_batch_size
    hash_shuffle_reduce_get_timeout_s iceberg_config isolate_read_workers issue_detectors_config
    join_operator_actor_num_cpus_override label_selector lance_config large_args_threshold locality_with_output
    log_internal_stack_trace max_consecutive_actor_init_deaths max_errored_blocks max_hash_shuffle_aggregators
    max_hash_shuffle_finalization_batch_size max_map_retries max_tasks_in_flight_per_actor
    memory_usage_poll_interval_s min_hash_shuffle_aggregator_wait_time_in_s min_parallelism
    op_resource_reservation_enabled op_resource_reservation_ratio optimizer_enabled
    override_object_store_memory_limit_fraction pandas_block_ignore_metadata parquet_chunker_target_chunk_size
    pipeline_push_based_shuffle_reduce_tasks print_on_execution_start raise_original_map_exception
    read_op_min_num_blocks retried_io_errors retried_map_errors s3_try_create_dir scheduling_strategy
    scheduling_strategy_large_args shuffle_input_batch_bytes shuffle_strategy streaming_read_buffer_size
    target_min_block_size target_shuffle_max_block_size trace_allocations use_arrow_tensor_v2 use_datasource_v2
    use_legacy_dataset_ids use_polars use_polars_sort use_push_based_shuffle use_ray_tqdm use_streaming_executor
    verbose_progress verbose_stats_logs wait_for_min_actors_s warn_on_driver_memory_usage_bytes
    write_file_retry_on_errors
"""
"""Settings of Ray's `DataContext`, `ExecutionOptions` and `ExecutionResources` that mean nothing here."""
_RAY_NAMES = frozenset(_RAY_SETTINGS.split())
_OUTPUT_SETTINGS = """
    enable_auto_log_stats enable_operator_progress_bars enable_progress_bar_name_truncation enable_progress_bars
    enable_rich_progress_bars print_on_execution_start use_ray_tqdm verbose_progress verbose_stats_logs
"""
_OUTPUT_SWITCHES = frozenset(_OUTPUT_SETTINGS.split())
"""Of Ray's settings, those that turn output on. Datasets print nothing, so turning it off needs no warning."""
_ORIGINAL_ERRORS = "raise_original_map_exception"
_COUNTERPARTS = {
    "max_errored_blocks": "on_error='skip' leaves out the rows that a function fails on",
    "checkpoint_config": "a writer continues a job with resume=True",
    _ORIGINAL_ERRORS: "the exception of a function is always raised as it is",
}
"""What does the same here as a setting of Ray's."""
_RESOURCE_KEYS = {"cpu": "CPU", "gpu": "GPU", "object_store_memory": "object_store_memory", "memory": "memory"}
"""The fields of `ExecutionResources`, with Ray's keys for them."""
_warned: set[str] = set()


class _DatasetSettings:
    """Refuses to set what does not exist: a misspelt setting would be ignored."""

    def __setattr__(self, name: str, value: Any) -> None:
        names = [each.name for each in fields(self)]  # type: ignore[arg-type]
        owner = type(self).__name__
        is_default = hasattr(type(self), name) and value == getattr(type(self), name)
        if name in _RAY_NAMES and not is_default:
            is_so_already = value is False if name in _OUTPUT_SWITCHES else name == _ORIGINAL_ERRORS and value is True
            if not is_so_already:
                _warn_once(f"{owner}.{name}", stacklevel=3)
        elif name not in names and not hasattr(type(self), name):
            import difflib

            similar = difflib.get_close_matches(name, [*names, *_RAY_NAMES], n=1)
            hint = f"\n\nhint: did you mean {similar[0]!r}?" if similar else ""
            raise AttributeError(f"{owner} has no setting {name!r}; the settings are {', '.join(names)}{hint}")
        super().__setattr__(name, value)


def _warn_once(setting: str, stacklevel: int) -> None:
    if setting not in _warned:
        _warned.add(setting)
        hint = _COUNTERPARTS.get(setting.rpartition(".")[2])
        text = f"{setting} has no effect here: it is a setting of Ray Data" + (f"\n\nhint: {hint}" if hint else "")
        warnings.warn(text, stacklevel=stacklevel + 1)


@dataclass
class ExecutionResources(_DatasetSettings):
    """Limits on what the processes of a dataset may use together; None means everything available.

    As amounts they can be added and compared; None then counts as 0, but as no limit in `satisfies_limit`.
    """

    cpu: float | None = None
    gpu: float | None = None
    object_store_memory: float | None = None
    """Bytes in flight between producers and consumers of blocks. None: a quarter of the free memory."""

    memory: float | None = None
    """Bytes. Has no effect as a limit."""

    def __post_init__(self) -> None:
        for name in _RESOURCE_KEYS:
            value = getattr(self, name)
            if value is not None and not (is_number(value) and value >= 0):
                raise bad_value(name, "a non-negative number, or None for all that is available", value)

    @classmethod
    def zero(cls) -> ExecutionResources:
        return cls(0.0, 0.0, 0, 0)

    @classmethod
    def inf(cls) -> ExecutionResources:
        return cls.for_limits()

    @classmethod
    def for_limits(
        cls,
        cpu: float | None = None,
        gpu: float | None = None,
        object_store_memory: float | None = None,
        memory: float | None = None,
    ) -> ExecutionResources:
        """Return limits, which are infinite where none is given."""
        given = (cpu, gpu, object_store_memory, memory)
        return cls(*(math.inf if limit is None else limit for limit in given))

    @classmethod
    def from_resource_dict(cls, resource_dict: Mapping[str, float]) -> ExecutionResources:
        """Create from a dict with the keys CPU, GPU, object_store_memory and memory; others are ignored."""
        return cls(**{name: resource_dict.get(key, 0) for name, key in _RESOURCE_KEYS.items()})

    def to_resource_dict(self) -> dict[str, float]:
        return {key: self._amount(name) for name, key in _RESOURCE_KEYS.items()}

    @classmethod
    def combine(
        cls, resources: Iterable[ExecutionResources], fn: Callable[[float, float], float]
    ) -> ExecutionResources:
        """Combine the amounts of several with a function of two numbers; zero if there are none."""
        found = list(resources)
        if not found:
            return cls.zero()
        return cls._from_amounts({name: reduce(fn, (each._amount(name) for each in found)) for name in _RESOURCE_KEYS})

    @classmethod
    def combine_sum(cls, resources: Iterable[ExecutionResources]) -> ExecutionResources:
        return cls.combine(resources, operator.add)

    def copy(
        self,
        cpu: float | None = None,
        gpu: float | None = None,
        memory: float | None = None,
        object_store_memory: float | None = None,
    ) -> ExecutionResources:
        """Return a copy with the given amounts replaced."""
        given = {"cpu": cpu, "gpu": gpu, "object_store_memory": object_store_memory, "memory": memory}
        copied = copy.copy(self)
        vars(copied).update({name: value for name, value in given.items() if value is not None})
        copied.__post_init__()
        return copied

    def add(self, other: ExecutionResources) -> ExecutionResources:
        return self.combine((self, other), operator.add)

    def subtract(self, other: ExecutionResources) -> ExecutionResources:
        """Return the difference, which may be negative."""
        return self.combine((self, other), operator.sub)

    def max(self, other: ExecutionResources) -> ExecutionResources:
        return self.combine((self, other), max)

    def min(self, other: ExecutionResources) -> ExecutionResources:
        return self.combine((self, other), min)

    def scale(self, f: float) -> ExecutionResources:
        return self._from_amounts({name: self._amount(name) * f if f else 0.0 for name in _RESOURCE_KEYS})

    def floordiv(self, other: ExecutionResources) -> ExecutionResources:
        """Return how often `other` fits into each amount: infinitely often if it is 0."""
        return self.combine((self, other), lambda one, each: one // each if each else math.inf)

    def is_zero(self) -> bool:
        return not any(map(self._amount, _RESOURCE_KEYS))

    def is_non_negative(self) -> bool:
        return all(self._amount(name) >= 0 for name in _RESOURCE_KEYS)

    def satisfies_limit(self, limit: ExecutionResources, *, ignore_object_store_memory: bool = False) -> bool:
        """Whether no amount exceeds the one of `limit`."""
        limits = {name: getattr(limit, name) for name in _RESOURCE_KEYS}
        if ignore_object_store_memory:
            del limits["object_store_memory"]
        return all(most is None or self._amount(name) <= most for name, most in limits.items())

    def object_store_memory_str(self) -> str:
        return _format_bytes(self._amount("object_store_memory"))

    def memory_str(self) -> str:
        return _format_bytes(self._amount("memory"))

    def _amount(self, name: str) -> float:
        value: float | None = getattr(self, name)
        return 0.0 if value is None else value

    @classmethod
    def _from_amounts(cls, amounts: Mapping[str, float]) -> ExecutionResources:
        """Create without a check, because a difference may be negative. Five digits hide errors of rounding."""
        result = cls()
        for name, value in amounts.items():
            is_whole = "memory" in name and math.isfinite(value)
            vars(result)[name] = int(value) if is_whole else round(value, 5) if math.isfinite(value) else value
        return result


def _format_bytes(number: float) -> str:
    if math.isinf(number):
        return str(number)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(number) < 1024:
            return f"{number:.1f}{unit}"
        number /= 1024
    return f"{number:.1f}TiB"


@dataclass
class ExecutionOptions(_DatasetSettings):
    """Options for running datasets: `DataContext.get_current().execution_options`."""

    resource_limits: ExecutionResources = field(default_factory=ExecutionResources)
    preserve_order: bool = True
    """Always True: the order of rows is part of a dataset."""
    verbose_progress: bool = False
    """Has no effect."""

    def __setattr__(self, name: str, value: Any) -> None:
        if name == "resource_limits":
            value = ExecutionResources() if value is None else value
            check_instance(name, value, ExecutionResources, "a paceline.data.ExecutionResources")
            if not value.is_non_negative():
                raise bad_value(name, "non-negative", value)
            if value.memory not in (None, math.inf):
                _warn_once("ExecutionResources.memory", stacklevel=3)
            if math.inf in vars(value).values():
                value = ExecutionResources(
                    **{key: None if most == math.inf else most for key, most in vars(value).items()}
                )
        super().__setattr__(name, value)


@dataclass
class DataContext(_DatasetSettings):
    """Settings for all datasets of this process. Modify the object that `DataContext.get_current()` returns."""

    execution_options: ExecutionOptions = field(default_factory=ExecutionOptions)
    target_max_block_size: int = 128 << 20
    """Maximum size of a block in bytes; larger blocks are split."""
    inline_below: int = 4 << 20
    """A dataset known to be smaller, in bytes, runs in the calling process: starting others would take longer."""
    max_unit_failures: int = 3
    """How often a unit is retried after the process that ran it died."""
    spill_path: str | None = None
    """Directory for rows that a shuffle or a sort cannot keep in memory. None: the system's temporary directory."""

    _configs: dict[str, Any] = field(default_factory=dict, repr=False, compare=False)
    _configs_id: str = field(default="", repr=False)
    """Another one after each change of `_configs`, whose values may be of a kind that cannot be compared."""

    in_data_process: ClassVar[bool] = False
    """Whether this process is a data process. Data processes start no others."""
    _current: ClassVar[DataContext | None] = None

    @classmethod
    def get_current(cls) -> DataContext:
        """Return the context of this process."""
        if cls._current is None:
            cls._current = cls()
        return cls._current

    @classmethod
    @contextmanager
    def current(cls, context: DataContext) -> Iterator[DataContext]:
        """Make a context the current one of this process, within a `with` block."""
        check_instance("context", context, DataContext, "a paceline.data.DataContext")
        before, cls._current = cls._current, context
        try:
            yield context
        finally:
            cls._current = before

    def set_config(self, key: str, value: Any) -> None:
        """Keep a value of your own, which functions over rows read with `DataContext.get_current().get_config(key)`."""
        self._configs[key], self._configs_id = value, uuid.uuid4().hex

    def get_config(self, key: str, default: Any = None) -> Any:
        return self._configs.get(key, default)

    def remove_config(self, key: str) -> None:
        """Remove a value; there need not be one."""
        self._configs.pop(key, None)
        self._configs_id = uuid.uuid4().hex

    def copy(self) -> DataContext:
        """Return a copy that can be changed on its own."""
        return copy.deepcopy(self)

    @property
    def budget(self) -> int:
        """Return how many bytes may be in flight."""
        limit = self.execution_options.resource_limits.object_store_memory
        return int(limit if limit is not None else system.usable_memory().free_bytes // 4)

    @property
    def num_processes(self) -> int:
        """Return how many processes read and transform at the same time."""
        limit = self.execution_options.resource_limits.cpu
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        return max(1, int(limit) if limit is not None else cores)
