"""`with_resources` and `with_parameters`: attach resources or objects to a trainable."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from paceline._core.arguments import bad_value
from paceline.train.checkpoint import Checkpoint
from paceline.train.trainer import DataParallelTrainer
from paceline.tune.registry import get_trainable_cls
from paceline.tune.trainables.resources import TrialResources, check_resources
from paceline.tune.trainables.shared_objects import SharedObjects
from paceline.tune.trainables.trainable import Trainable


@dataclass(frozen=True)
class WrappedTrainable:
    """A function or class with its resources and the objects that its trials share."""

    trainable: Any
    resources: TrialResources | None = None
    shared: SharedObjects | None = None
    initial: Checkpoint | None = None
    """What every trial starts from."""
    export_formats: tuple[str, ...] = ()
    """What `Trainable.export_model` is called with when a trial ends."""

    def __call__(self, config: Any) -> Any:
        """Call the function directly, as a trial would."""
        objects = self.shared.make_handle().load() if self.shared is not None else {}
        return self.trainable(config, **objects)


def with_resources(trainable: Any, resources: Any = None, **amounts: Any) -> WrappedTrainable:
    """Set the resources of each trial of a function or class; the default is one CPU.

    `resources` is a dict such as `{"cpu": 2, "gpu": 0.5}`, a `ScalingConfig`, a `PlacementGroupFactory`, or a function
    of the trial's config that returns one of them.
    """
    if amounts:
        names = ", ".join(amounts)
        hint = f"use with_resources({_name(getattr(trainable, 'trainable', trainable))}, {amounts!r})"
        raise TypeError(f"with_resources takes resources as one argument, got {names} by name\n\nhint: {hint}")
    wrapped = _check_wrappable(trainable, "with_resources", "pass a scaling_config to the trainer instead")
    return replace(wrapped, resources=check_resources(resources))


def with_parameters(trainable: Any, **objects: Any) -> WrappedTrainable:
    """Pass large objects to every trial, as keyword arguments of the function or of a class's `setup`.

        def train(config, data): ...

        Tuner(tune.with_parameters(train, data=data), ...)

    The objects are stored in memory once, as they are now. In the trials, arrays, Arrow tables and pandas frames are
    read-only views of that memory and use no memory of their own.
    """
    wrapped = _check_wrappable(
        trainable, "with_parameters", "pass objects to the trainer in train_loop_config, and data as datasets"
    )
    if wrapped.shared is not None:
        raise ValueError(f"with_parameters was already used on {_name(wrapped.trainable)}: pass all objects at once")
    if not objects:
        return wrapped
    _check_takes_arguments(wrapped.trainable, tuple(objects))
    return replace(wrapped, shared=SharedObjects(objects))


def as_wrapped(trainable: Any) -> WrappedTrainable:
    """Wrap a trainable unless it is wrapped already; a text is the name of a registered one."""
    if isinstance(trainable, str):
        trainable = get_trainable_cls(trainable)
    return trainable if isinstance(trainable, WrappedTrainable) else WrappedTrainable(trainable)


def _check_wrappable(trainable: Any, function: str, for_trainers: str) -> WrappedTrainable:
    wrapped = as_wrapped(trainable)
    inner = wrapped.trainable
    is_unusable_class = isinstance(inner, type) and not issubclass(inner, Trainable)
    if isinstance(inner, DataParallelTrainer) or not callable(inner) or is_unusable_class:
        hint = for_trainers if isinstance(inner, DataParallelTrainer) else None
        raise bad_value(f"{function}: trainable", "a function or a subclass of tune.Trainable", inner, hint)
    return wrapped


def _check_takes_arguments(trainable: Any, names: tuple[str, ...]) -> None:
    is_class = isinstance(trainable, type) and issubclass(trainable, Trainable)
    function: Callable[..., Any] = trainable.setup if is_class else trainable
    try:
        parameters = inspect.signature(function).parameters
    except (TypeError, ValueError):
        return  # Written in C: the call itself will raise.
    if any(p.kind is p.VAR_KEYWORD for p in parameters.values()):
        return
    takes = [p.name for p in parameters.values() if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
    first = 2 if is_class else 1
    for name in names:
        if name not in takes[first:]:
            raise ValueError(
                f"with_parameters: unknown argument {name!r}; the arguments of {_name(trainable)} besides config are "
                f"{', '.join(takes[first:]) or 'none'}"
            )


def _name(trainable: Any) -> str:
    name = getattr(trainable, "__name__", type(trainable).__name__)
    return f"{name}.setup" if isinstance(trainable, type) else f"{name}"
