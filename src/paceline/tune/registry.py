"""Trainables, environments and inputs by name: `register_trainable("mine", train)`, then `Tuner("mine")`.

The names are those of this process. A search stores no code: the script that resumes it registers the same names again.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from paceline._core.arguments import bad_value, check_callable, find_nearest, join_first
from paceline._core.frames import warn_caller
from paceline._core.lazy_imports import explain_module
from paceline.tune.trainables.trainable import Trainable

__all__ = [
    "get_env_creator",
    "get_trainable_cls",
    "is_function_trainable",
    "register_env",
    "register_input",
    "register_trainable",
    "registry_contains_input",
    "registry_get_input",
    "validate_trainable",
]

_trainables: dict[str, Any] = {}
_environments: dict[str, Callable[..., Any]] = {}
_inputs: dict[str, Callable[..., Any]] = {}


def register_trainable(name: str, trainable: Any, warn: bool = True) -> None:
    """Make a function, a `Trainable` class or a trainer usable by name in `Tuner` and `tune.run`.

    A name may be registered again; with `warn`, different code under a known name is reported.
    """
    _check_name(name)
    if warn and _trainables.get(name, trainable) is not trainable:
        warn_caller(f"the trainable {name!r} is registered again, with other code")
    _trainables[name] = trainable


def get_trainable_cls(trainable_name: str) -> Any:
    """Return the registered class, function or trainer; the latter two need no class here."""
    if trainable_name not in _trainables:
        nearest = find_nearest(trainable_name, _trainables)
        known = join_first(sorted(_trainables), 10) or "none"
        raise ValueError(
            f"no trainable is registered as {trainable_name!r}; there is {known}\n\nhint: "
            + (f"did you mean {nearest!r}?" if nearest else f"tune.register_trainable({trainable_name!r}, ...)")
        )
    return _trainables[trainable_name]


def validate_trainable(trainable_name: str) -> None:
    """Raise if no trainable has this name."""
    get_trainable_cls(trainable_name)


def is_function_trainable(trainable: Any) -> bool:
    """Whether it is a function, or the name of a registered one."""
    found = get_trainable_cls(trainable) if isinstance(trainable, str) else trainable
    return callable(found) and not (isinstance(found, type) and issubclass(found, Trainable))


def register_env(name: str, env_creator: Callable[..., Any]) -> None:
    """Register a function that creates an environment from a config. A trial's code gets it with `get_env_creator`."""
    _check_name(name)
    _environments[name] = check_callable("env_creator", env_creator)


def get_env_creator(name: str) -> Callable[..., Any]:
    """Return the function that was registered with `register_env`."""
    if name not in _environments:
        raise ValueError(f"no environment is registered as {name!r}; there is {join_first(sorted(_environments), 10)}")
    return _environments[name]


def register_input(name: str, input_creator: Callable[..., Any]) -> None:
    """Register a function that creates an input reader."""
    _check_name(name)
    _inputs[name] = check_callable("input_creator", input_creator)


def registry_contains_input(name: str) -> bool:
    """Tell whether an input reader is registered under this name."""
    return name in _inputs


def registry_get_input(name: str) -> Callable[..., Any]:
    """Return the function that was registered with `register_input`."""
    return _inputs[name]


def _check_name(name: Any) -> None:
    if not isinstance(name, str) or not name:
        raise bad_value("name", "a name", name)


explain_module(__name__)
