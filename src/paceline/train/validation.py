"""Validation of checkpoints during training: its configuration, and the job that performs it.

A validation runs in a worker of its own. It is not part of the training: it knows only the checkpoint and its
arguments.
"""

from __future__ import annotations

import math
import pickle
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import cloudpickle
import msgspec

from paceline._core.plain_values import from_plain, to_plain
from paceline._engine.messages import CheckpointRecord, ValidationTask
from paceline._worker import context as worker_context
from paceline.train.checkpoint import Checkpoint
from paceline.train.config import _reject_unknown_arguments, _short_repr, coerce_config

ValidationFn = Callable[..., dict[str, Any]]
"""`fn(checkpoint, **fn_kwargs)`, which returns metrics."""

_SUPPORTED_OPTIONS = ("num_cpus", "num_gpus", "max_retries", "retry_exceptions")


@_reject_unknown_arguments
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
            raise ValueError(f"fn_kwargs={kwargs!r} is not a dict of keyword arguments")
        object.__setattr__(self, "fn_kwargs", dict(kwargs))
        limit = self.timeout_s
        is_number = isinstance(limit, int | float) and not isinstance(limit, bool)
        if limit is not None and not (is_number and 0 < limit < math.inf):
            raise ValueError(f"timeout_s={limit!r} is not a number of seconds above 0, or None for no limit")

    def __repr__(self) -> str:
        return _short_repr(self)


@_reject_unknown_arguments
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
        if not callable(self.fn):
            raise ValueError(f"fn={self.fn!r} is not a function")
        object.__setattr__(self, "task_config", coerce_config(ValidationTaskConfig, self.task_config, "task_config"))
        options: Any = self.ray_remote_kwargs if self.ray_remote_kwargs is not None else {}
        if not isinstance(options, Mapping):
            raise ValueError(f"ray_remote_kwargs={options!r} is not a dict such as {{'num_gpus': 1}}")
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
        return int(
            self.ray_remote_kwargs.get("max_retries", 3 if self.ray_remote_kwargs.get("retry_exceptions") else 0)
        )

    def should_retry(self, error: BaseException | None) -> bool:
        """Whether to retry after this error while retries are left. None: the process died."""
        if error is None:
            return True
        retried = self.ray_remote_kwargs.get("retry_exceptions", False)
        return bool(retried) if isinstance(retried, bool) else isinstance(error, tuple(retried))

    def timeout_s(self, record: CheckpointRecord) -> float | None:
        asked = record.validation.timeout_s if record.validation is not None else None
        return asked if asked is not None else self.task_config.timeout_s

    def pickle_function(self) -> bytes:
        """Pickle the function and its arguments, for every validation of a run."""
        try:
            both: bytes = cloudpickle.dumps((self.fn, self.task_config.fn_kwargs))
        except (TypeError, pickle.PicklingError, AttributeError, RecursionError) as problem:
            raise TypeError(
                "validation_config: fn, with its fn_kwargs, cannot be sent to the process that validates "
                f"({type(problem).__name__}: {problem})\n\n"
                "hint: create locks, connections, files and data loaders inside the function"
            ) from problem
        return both

    def __repr__(self) -> str:
        return _short_repr(self)


def to_validation_task(validation: bool | ValidationTaskConfig) -> ValidationTask | None:
    """Convert what a report requests to the form that is stored."""
    if isinstance(validation, ValidationTaskConfig):
        kwargs = to_plain(validation.fn_kwargs, "validation.fn_kwargs")
        return ValidationTask(msgspec.Raw(msgspec.json.encode(kwargs)), validation.timeout_s)
    if not isinstance(validation, bool):
        raise TypeError(f"validation={validation!r} is neither a bool nor a paceline.train.ValidationTaskConfig")
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
        function, kwargs = pickle.loads(self.pickled_function)  # noqa: S301  from the driver's memory, as every job
        seq, name, attempt = self.checkpoint
        place = context.depot.locate_checkpoint(CheckpointRecord(seq, name, attempt, msgspec.Raw(b"{}")))
        returned = function(Checkpoint(*place), **{**kwargs, **from_plain(msgspec.json.decode(self.report_kwargs))})
        if not isinstance(returned, dict):
            raise TypeError(f"the validation returned {returned!r:.200}, which is not a dict of metrics")
        to_plain(returned, "the validation's metrics")
        return returned


def _check_option(name: Any, value: Any) -> None:
    where = f"ray_remote_kwargs[{name!r}]={value!r}"
    if name not in _SUPPORTED_OPTIONS:
        raise ValueError(f"{where} has no meaning here: {', '.join(_SUPPORTED_OPTIONS)} have")
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if name in ("num_cpus", "num_gpus"):
        if not is_number or not value >= 0:
            raise ValueError(f"{where} is not a number of 0 or more")
        if name == "num_gpus" and value > 1 and value != int(value):
            raise ValueError(f"{where} is neither below 1 nor a whole number")
    elif name == "max_retries":
        if not is_number or value != int(value) or value < -1:
            raise ValueError(f"{where} is not 0 or more, or -1 for no limit")
    elif not isinstance(value, bool):
        kinds = value if isinstance(value, list | tuple) else [value]
        if kinds is not value or not all(isinstance(kind, type) and issubclass(kind, Exception) for kind in kinds):
            raise ValueError(f"{where} is neither a bool nor a list of exceptions")
