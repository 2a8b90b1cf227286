"""The job sent to the workers: the user's function, its config, and the backend around it.

If part of it does not pickle, the error names that object. A pickler fails on the last object that it was passed; a
breadth-first search, limited in steps and time, finds the shortest path to it from the function.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import io
import sys
import time
import types
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import cloudpickle

from paceline._core.arguments import check_callable, check_instance
from paceline._core.frames import warn_caller
from paceline._core.process_setup import prepare_driver
from paceline.train.backend import BackendConfig

if TYPE_CHECKING:
    from paceline._worker.main import Job
    from paceline.data.context import DataContext


def resolve_loop_config(function: Any, config: Any) -> Any:
    """Return the config that the function is called with, or None to call it without arguments."""
    check_callable("train_loop_per_worker", function)
    check_instance("train_loop_config", config, Mapping, "a dict", optional=True)
    try:
        parameters = list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):
        return config
    positional = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD, p.VAR_POSITIONAL)]
    required = [p for p in positional if p.default is p.empty and p.kind is not p.VAR_POSITIONAL]
    if len(required) > 1:
        raise ValueError(
            f"train_loop_per_worker must take train_loop_config or no argument, "
            f"got a function with {len(required)} arguments: {', '.join(p.name for p in required)}"
        )
    if config and not positional:
        name = getattr(function, "__name__", type(function).__name__)
        warn_caller(f"train_loop_config has no effect here: {name}() takes no argument")
    if not positional:
        return None
    return {} if config is None and required else config


def pickle_job(function: Any, config: Any, backend: BackendConfig) -> bytes:
    """Pickle the job. If part of it does not pickle, the error names that object and the path to it."""
    prepare_driver()
    job, context = (function, config, backend), _data_context()
    try:
        with _keep_references():
            return bytes(cloudpickle.dumps(job if context is None else _JobWithContext(job, context)))
    except Exception as problem:
        parts = {
            "train_loop_per_worker": function,
            "train_loop_config": config,
            "backend_config": backend,
            "DataContext": context,
        }
        path, reason = explain_unpicklable(parts, "something that goes with train_loop_per_worker", problem)
        raise TypeError(
            f"{path} cannot be sent to the workers: {reason}\n\n"
            "hint: create locks, connections, files and data loaders inside train_loop_per_worker"
        ) from problem


@dataclass(frozen=True)
class _JobWithContext:
    """Unpickles as the job, and sets the driver's `DataContext` in the worker."""

    job: Job
    context: DataContext

    def __reduce__(self) -> tuple[Any, ...]:
        return _set_context, (self.context, self.job)


def _set_context(context: DataContext, job: Job) -> Job:
    from paceline.data.context import DataContext

    DataContext._current = context
    return job


def _data_context() -> DataContext | None:
    """The context of the driver; None if it has none, because it uses no datasets."""
    module = sys.modules.get("paceline.data.context")
    return module.DataContext._current if module is not None else None


def _keep_references() -> contextlib.AbstractContextManager[None]:
    if "ray" not in sys.modules:
        return contextlib.nullcontext()
    from paceline._engine.ray.ray_in_worker import keep_reference_owners

    return keep_reference_owners()


def pickle_filesystem(filesystem: Any) -> bytes | None:
    """Pickle a user's filesystem, so that workers can open it themselves."""
    if filesystem is None:
        return None
    try:
        return bytes(cloudpickle.dumps(filesystem))
    except Exception as error:
        raise ValueError(f"cannot send storage_filesystem {filesystem!r} to workers: {error}") from error


_MAX_VISITED = 200_000
_MAX_SEARCH_S = 0.3
_MAX_STEPS = 12
_ATOMIC_TYPES = (str, bytes, int, float, complex, bool, type(None), types.ModuleType)


@dataclass(frozen=True)
class UnpicklableObject:
    """An object that does not pickle, why, and the path from the function to it."""

    path: str
    problem: Exception


def find_unpicklable(roots: Mapping[str, Any]) -> UnpicklableObject | None:
    """Return the first object under these names that does not pickle; None if everything does."""
    for name, root in roots.items():
        pickler = _TrackingPickler()
        try:
            pickler.dump(root)
        except Exception as problem:  # noqa: BLE001  whatever a __getstate__ of the user's raises is an answer
            culprit = pickler.last_object
            return UnpicklableObject(_format_path(name, _find_path(root, culprit), culprit), problem)
    return None


def explain_unpicklable(roots: Mapping[str, Any], otherwise: str, problem: Exception) -> tuple[str, str]:
    """Return the path to the object that does not pickle, else `otherwise`, and the reason, for an error's text."""
    found = find_unpicklable(roots) or UnpicklableObject(otherwise, problem)
    return found.path, f"{type(found.problem).__name__}: {found.problem}"


class _NullWriter(io.RawIOBase):
    def write(self, data: Any) -> int:
        return len(data)


class _TrackingPickler(cloudpickle.Pickler):  # type: ignore[misc]
    """Discards its output and remembers the last object that it was passed."""

    def __init__(self) -> None:
        super().__init__(_NullWriter())
        self.last_object: Any = None

    def persistent_id(self, value: Any) -> None:
        self.last_object = value


def _find_path(root: Any, target: Any) -> list[str] | None:
    """Return the steps from one object to another; None if no path was found within the limits."""
    until = time.monotonic() + _MAX_SEARCH_S
    queue: deque[tuple[Any, tuple[Any, ...]]] = deque([(root, ())])
    # Keep the objects themselves: an id is valid only while its object lives.
    visited = {id(root): root}
    while queue and len(visited) < _MAX_VISITED and time.monotonic() < until:
        value, linked = queue.popleft()
        if value is target:
            return _unroll_steps(linked)
        for step, part in _iter_parts(value):
            if id(part) not in visited and (part is target or not isinstance(part, _ATOMIC_TYPES)):
                visited[id(part)] = part
                queue.append((part, (linked, step)))
    return None


def _unroll_steps(linked: tuple[Any, ...]) -> list[str]:
    steps = []
    while linked:
        linked, step = linked
        steps.append(step)
    return steps[::-1]


def _iter_parts(value: Any) -> Iterator[tuple[str, Any]]:
    """Yield what is pickled along with this object, and the step that leads to it."""
    if isinstance(value, Mapping):
        try:
            yield from ((f"[{_short_key_repr(key)}]", part) for key, part in value.items())
            yield from (("a key", key) for key in value)
        except Exception:  # noqa: BLE001  a mapping of the user's that cannot be walked has no parts to name
            return
    elif isinstance(value, list | tuple | deque):
        yield from ((f"[{index}]", part) for index, part in enumerate(value))
    elif isinstance(value, set | frozenset):
        yield from (("an element", part) for part in value)
    elif isinstance(value, types.FunctionType):
        yield from _iter_function_parts(value)
    elif isinstance(value, types.MethodType):
        yield f"the object of .{value.__name__}", value.__self__
        yield from _iter_parts(value.__func__)
    elif isinstance(value, functools.partial):
        yield "the function of a partial", value.func
        yield from ((f"argument {index}", part) for index, part in enumerate(value.args))
        yield from ((f"argument {name!r}", part) for name, part in value.keywords.items())
    if isinstance(value, type):
        if not _is_importable(value):
            yield from ((f".{name}", part) for name, part in vars(value).items() if not name.startswith("__"))
        return
    yield from ((f".{name}", part) for name, part in getattr(value, "__dict__", {}).items())
    for name in _iter_slot_names(type(value)):
        if (part := getattr(value, name, None)) is not None:
            yield f".{name}", part
    if type(value).__module__ != "builtins" and not _is_importable(type(value)):
        yield f"its class {type(value).__name__}", type(value)


def _iter_function_parts(function: types.FunctionType) -> Iterator[tuple[str, Any]]:
    if _is_importable(function):
        return
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=False):
        try:
            yield f"closure variable {name!r}", cell.cell_contents
        except ValueError:
            continue  # Has no value yet.
    for name in iter_global_names(function.__code__):
        if name in function.__globals__:
            yield f"global {name!r}", function.__globals__[name]
    for name, parameter in inspect.signature(function).parameters.items():
        if parameter.default is not parameter.empty:
            yield f"default of {name!r}", parameter.default


def iter_global_names(code: types.CodeType) -> Iterator[str]:
    """Yield the names of globals, attributes and imports in a function's code and in the functions within it."""
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from iter_global_names(constant)


def _iter_slot_names(kind: type) -> Iterator[str]:
    for base in kind.__mro__:
        slots = base.__dict__.get("__slots__", ())
        yield from (slots,) if isinstance(slots, str) else slots


def _is_importable(value: Any) -> bool:
    """Whether a function or class is pickled by name; those of `__main__` are not."""
    module, name = getattr(value, "__module__", None), getattr(value, "__qualname__", "")
    if module in (None, "__main__"):
        return False
    current = sys.modules.get(module)
    for part in name.split("."):
        current = getattr(current, part, None)
    return current is value


def _format_path(name: str, trail: list[str] | None, value: Any) -> str:
    steps = trail if trail is not None else ["something in it"]
    if len(steps) > _MAX_STEPS:
        steps = [*steps[: _MAX_STEPS - 1], f"... {len(steps) - _MAX_STEPS} more ...", steps[-1]]
    return f"{' -> '.join([name, *steps])} ({_type_name(value)})"


def _type_name(value: Any) -> str:
    if isinstance(value, type):
        return f"the class {value.__qualname__}"
    kind = type(value)
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"


def _short_key_repr(key: Any) -> str:
    try:
        text = repr(key)
    except Exception:  # noqa: BLE001  the user's own __repr__ raises; the kind of the key has to do
        text = f"a {type(key).__name__}"
    return text if len(text) <= 60 else f"{text[:57]}..."
