"""Validation of checkpoints during training: its configuration, and the job that performs it.

A validation runs in a worker of its own. It is not part of the training: it knows only the checkpoint and its
arguments.
"""

from __future__ import annotations

import pickle
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import cloudpickle
import msgspec

from paceline._core.arguments import bad_value, check_callable, check_instance, check_number, is_finite_number
from paceline._core.checkpoint_records import CheckpointRecord, ValidationTask
from paceline._core.plain_values import from_plain, to_plain
from paceline._worker import context as worker_context
from paceline.train.checkpoint import Checkpoint
from paceline.train.config import coerce_config, config_class

ValidationFn = Callable[..., dict[str, Any]]
"""`fn(checkpoint, **fn_kwargs)`, which returns metrics."""

_SUPPORTED_OPTIONS = ("num_cpus", "num_gpus", "max_retries", "retry_exceptions")


@config_class
@dataclass(frozen=True)
class ValidationTaskConfig:
    """One validation: the function's arguments beside the checkpoint, and a time limit.

    If passed to `report`, it may contain only plain data, because it outlives the driver; it then takes precedence over
    the trainer's.
    """

    fn_kwargs: Mapping[str, Any] = field(default_factory=dict)
    timeout_s: float | None = None

    def __post_init__(self) -> None:
        kwargs: Any = self.fn_kwargs if self.fn_kwargs is not None else {}
        if not isinstance(kwargs, Mapping) or not all(isinstance(name, str) for name in kwargs):
            raise bad_value("fn_kwargs", "a dict of keyword arguments", kwargs)
        object.__setattr__(self, "fn_kwargs", dict(kwargs))
        check_number("timeout_s", self.timeout_s, above=0, optional=True)


@config_class
@dataclass(frozen=True)
class ValidationConfig:
    """How checkpoints are validated: `fn(checkpoint, **fn_kwargs)` returns metrics that are added to the checkpoint's.

    It runs in a process of its own, one validation at a time, while training continues. `task_config` applies unless a
    report passes its own. `ray_remote_kwargs` may have `num_cpus`, `num_gpus`, `max_retries` and `retry_exceptions`: a
    process that died is retried up to `max_retries` times, an exception only if `retry_exceptions` is True or names it.
    """

    fn: ValidationFn
    task_config: ValidationTaskConfig = field(default_factory=ValidationTaskConfig)
    ray_remote_kwargs: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        check_callable("fn", self.fn)
        object.__setattr__(self, "task_config", coerce_config(ValidationTaskConfig, self.task_config, "task_config"))
        options: Any = self.ray_remote_kwargs if self.ray_remote_kwargs is not None else {}
        check_instance("ray_remote_kwargs", options, Mapping, "a dict such as {'num_gpus': 1}")
        object.__setattr__(self, "ray_remote_kwargs", dict(options))
        for name, value in options.items():
            _check_option(name, value)

    @property
    def num_gpus(self) -> float:
        return float(self.ray_remote_kwargs.get("num_gpus", 0))

    @property
    def num_cpus(self) -> float:
        return float(self.ray_remote_kwargs.get("num_cpus", 0))

    @property
    def max_retries(self) -> int:
        """By default 0; if exceptions are retried, 3, as in Ray."""
        default = 3 if self.ray_remote_kwargs.get("retry_exceptions") else 0
        return int(self.ray_remote_kwargs.get("max_retries", default))

    def should_retry(self, error: BaseException | None) -> bool:
        """Whether to retry after this error while retries are left. None: the process died."""
        if error is None:
            return True
        retried = self.ray_remote_kwargs.get("retry_exceptions", False)
        return bool(retried) if isinstance(retried, bool) else isinstance(error, tuple(retried))

    def timeout_s(self, record: CheckpointRecord) -> float | None:
        requested = record.validation.timeout_s if record.validation is not None else None
        return requested if requested is not None else self.task_config.timeout_s

    def pickle_function(self) -> bytes:
        """Pickle the function and its arguments, for every validation of a run."""
        try:
            return bytes(cloudpickle.dumps((self.fn, self.task_config.fn_kwargs)))
        except (TypeError, pickle.PicklingError, AttributeError, RecursionError) as problem:
            raise TypeError(
                "cannot send validation_config.fn and its fn_kwargs to the validation process: "
                f"{type(problem).__name__}: {problem}\n\n"
                "hint: create locks, connections, files and data loaders inside the function"
            ) from problem


def to_validation_task(validation: bool | ValidationTaskConfig) -> ValidationTask | None:
    """Convert what a report requests to the form that is stored."""
    if isinstance(validation, ValidationTaskConfig):
        kwargs = to_plain(validation.fn_kwargs, "validation.fn_kwargs")
        return ValidationTask(msgspec.Raw(msgspec.json.encode(kwargs)), validation.timeout_s)
    if not isinstance(validation, bool):
        raise TypeError(f"validation must be True, False or a paceline.train.ValidationTaskConfig, got {validation!r}")
    return ValidationTask() if validation else None


@dataclass(frozen=True)
class ValidationFunction:
    """The function of the worker that validates a checkpoint."""

    pickled_function: bytes
    """See `ValidationConfig.pickle_function`."""
    checkpoint: tuple[int, str, int]
    """Its number, name and attempt."""
    report_kwargs: bytes
    """The arguments that the report passed, in JSON."""

    def __call__(self) -> dict[str, Any]:
        context = worker_context.current()
        assert context is not None
        # This is not a training worker: a report from here would be mistaken for a training report.
        worker_context.pop_context()
        torch = sys.modules.get("torch")
        if torch is not None:
            torch.set_num_threads(context.begin.num_threads)
        function, kwargs = pickle.loads(self.pickled_function)  # noqa: S301
        seq, name, attempt = self.checkpoint
        location = context.store.locate_checkpoint(CheckpointRecord(seq, name, attempt, msgspec.Raw(b"{}")))
        returned = function(Checkpoint(*location), **{**kwargs, **from_plain(msgspec.json.decode(self.report_kwargs))})
        if not isinstance(returned, dict):
            raise TypeError(f"the validation function must return a dict of metrics, got {returned!r:.200}")
        to_plain(returned, "the validation's metrics")
        return returned


def _check_option(name: Any, value: Any) -> None:
    label = f"ray_remote_kwargs[{name!r}]"
    if name not in _SUPPORTED_OPTIONS:
        raise ValueError(f"unknown option {label}; the options are {', '.join(_SUPPORTED_OPTIONS)}")
    if name in ("num_cpus", "num_gpus"):
        check_number(label, value, at_least=0)
        if name == "num_gpus" and value > 1 and value != int(value):
            raise bad_value(label, "below 1 or an integer", value)
    elif name == "max_retries":
        if not is_finite_number(value) or value != int(value) or value < -1:
            raise bad_value(label, "a non-negative integer, or -1 for no limit", value)
    elif not isinstance(value, bool):
        kinds = value if isinstance(value, list | tuple) else [value]
        if kinds is not value or not all(isinstance(kind, type) and issubclass(kind, Exception) for kind in kinds):
            raise bad_value(label, "True, False or a list of exceptions", value)
