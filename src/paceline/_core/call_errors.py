"""Errors of calls with wrong arguments: they list the arguments there are, and say which one was meant.

`explain_calls` wraps public functions, and constructors and public methods of public classes, when they are defined or
first handed out by a package. A wrapper looks at the arguments only after a TypeError. Functions that a train function
calls at every step (those of modules named `session`) are not wrapped.
"""

from __future__ import annotations

import enum
import functools
import sys
from collections.abc import Callable, Sequence
from types import FunctionType
from typing import Any, TypeVar
from weakref import WeakSet

T = TypeVar("T")

CO_VARARGS, CO_VARKEYWORDS = 0x04, 0x08
"""Flags of code objects; `inspect` has them too, but is slow to import."""

_explained: WeakSet[Any] = WeakSet()
"""Classes whose calls are explained, and the wrappers of functions."""


def explain_calls(value: T) -> T:
    """Return a function or class of ours whose TypeErrors about arguments say more. A class is changed in place."""
    if isinstance(value, FunctionType) and _is_explainable(value):
        wrapper: Any = _wrap(value)
        module, name = sys.modules.get(value.__module__), wrapper.__name__
        if getattr(module, name, None) is value:  # Pickle looks for the function there.
            setattr(module, name, wrapper)
        return wrapper  # type: ignore[no-any-return]
    if isinstance(value, type) and not issubclass(value, BaseException | enum.Enum):
        for cls in filter(_is_explainable, value.__mro__):
            _wrap_methods(cls)
            _explained.add(cls)
    return value


def make_argument_error(
    function: Callable[..., Any],
    who: str,
    argument: str,
    owners: tuple[str, ...] = (),
    missing: Sequence[str] = (),
) -> TypeError:
    """Make the error for an argument that a function does not have.

    `owners` are the names of its class and the bases, `missing` the required arguments that were not given.
    """
    import inspect

    from paceline._core.arguments import find_nearest
    from paceline._core.ray_names import explain_argument

    known = _list_arguments(inspect.signature(function).parameters)
    hint = ""
    if said := explain_argument(function.__module__, owners, function.__name__, argument):
        hint = f"this differs from Ray: {said}"
    elif nearest := find_nearest(argument, known) or (missing[0] if len(missing) == 1 else None):
        hint = f"did you mean {nearest}?"
    text = f"{who}() has no argument {argument!r}; it has {', '.join(known) or 'none'}"
    return TypeError(f"{text}\n\nhint: {hint}" if hint else text)


def _is_explainable(value: Any) -> bool:
    module = value.__module__ or ""
    return module.startswith("paceline.") and not module.endswith(".session") and value not in _explained


def _wrap_methods(cls: type) -> None:
    for name, member in list(vars(cls).items()):
        if name.startswith("_") and name != "__init__":
            continue
        if isinstance(member, classmethod | staticmethod) and isinstance(member.__func__, FunctionType):
            setattr(cls, name, type(member)(_wrap(member.__func__)))
        elif isinstance(member, FunctionType) and member not in _explained and _takes_arguments(member):
            setattr(cls, name, _wrap(member))
    if not hasattr(cls, "__getattr__"):
        setattr(cls, "__getattr__", _explain_attribute)  # noqa: B010


def _takes_arguments(method: FunctionType) -> bool:
    """Whether it has arguments beside `self`. If not, as in `fit()`, a wrapper would only lengthen tracebacks."""
    code = method.__code__
    return code.co_argcount + code.co_kwonlyargcount > 1 or bool(code.co_flags & (CO_VARARGS | CO_VARKEYWORDS))


def _wrap(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        try:
            return function(*args, **kwargs)
        except (TypeError, ModuleNotFoundError) as error:
            explained = _explain_error(error, function, args, kwargs)
            if explained is None:
                raise
            raise explained from None

    _explained.add(call)
    return call


def _explain_error(
    error: TypeError | ModuleNotFoundError, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Exception | None:
    """Return a better error if the call does not fit the signature, or our code needs a package; None otherwise."""
    import inspect

    if isinstance(error, ModuleNotFoundError):
        return _explain_missing_module(error, function, args)
    parameters = inspect.signature(function).parameters
    who, owners = _name_call(function, args)
    if not any(each.kind is each.VAR_KEYWORD for each in parameters.values()):
        required = [name for name, each in parameters.items() if each.default is each.empty][len(args) :]
        missing = [name for name in required if name not in kwargs]
        for name in kwargs:
            if name not in parameters:
                return make_argument_error(function, who, name, owners, missing)
    assert error.__traceback__ is not None
    if error.__traceback__.tb_next is None and "\n\nhint:" not in str(error):  # Its own code has not run.
        return TypeError(f"{error}\n\nhint: {who}() has the arguments {', '.join(_list_arguments(parameters))}")
    return None


def _explain_missing_module(
    error: ModuleNotFoundError, function: Callable[..., Any], args: tuple[Any, ...]
) -> ImportError | None:
    """Return an error that names the extra, if it was our code that imported an optional dependency."""
    import traceback

    from paceline._core.frames import is_library_file
    from paceline._core.lazy_imports import explain_import

    if all(is_library_file(frame.filename) for frame in traceback.extract_tb(error.__traceback__)):
        return explain_import(error, _name_call(function, args)[0])
    return None


def _list_arguments(parameters: Any) -> list[str]:
    names = [name for name, each in parameters.items() if each.kind not in (each.VAR_POSITIONAL, each.VAR_KEYWORD)]
    return [name for name in names[names[:1] in (["self"], ["cls"], ["dataset"]) :] if not name.startswith("_")]


def _name_call(function: Callable[..., Any], args: tuple[Any, ...]) -> tuple[str, tuple[str, ...]]:
    """Return what the user called, as `Dataset.map_batches`, and the names of the class of a method and its bases."""
    name = function.__name__
    defined_in = function.__qualname__.rpartition(".")[0].rpartition(".")[2]
    if not defined_in or defined_in == "<locals>":
        return name, ()
    cls = (args[0] if isinstance(args[0], type) else type(args[0])) if args else None
    bases = cls.__mro__[:-1] if cls is not None else ()
    names = tuple(each.__name__ for each in bases)
    definer = next((each.__name__ for each in bases if name in vars(each)), "")
    # A subclass that defines the method itself passed the arguments on.
    owner = names[0] if definer == defined_in else defined_in
    return owner if name == "__init__" else f"{owner}.{name}", names or (defined_in,)


def _explain_attribute(self: Any, name: str) -> Any:
    """Stands in for `__getattr__`, which Python calls for an attribute that is not there."""
    if not name.startswith("_") and not hasattr(type(self), name):
        from paceline._core.ray_names import explain_member

        ours = [cls for cls in type(self).__mro__ if cls.__module__.startswith("paceline.")]
        if said := explain_member(ours[0].__module__, tuple(cls.__name__ for cls in ours), name):
            text = f"{type(self).__name__!r} object has no attribute {name!r}\n\nhint: this differs from Ray: {said}"
            raise AttributeError(text, name=name, obj=self)
    return object.__getattribute__(self, name)  # Raises what it raised before.
