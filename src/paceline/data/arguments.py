"""Whether what the functions of `read.py` are given is what they take; what is not is named, with what would be."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pyarrow.compute as pc

from paceline.data.expressions import Expr, parsed
from paceline.data.files import Paths


def condition(given: Any) -> Any:
    if isinstance(given, str):
        return parsed(given)
    if given is None or isinstance(given, Expr | pc.Expression):
        return given
    raise ValueError(
        f"filter={given!r} must be an expression such as paceline.data.col('age') > 30, the same as text, or one of "
        "pyarrow.compute"
    )


def names(argument: str, given: Any) -> Sequence[str]:
    if isinstance(given, str) or not isinstance(given, Sequence) or not all(isinstance(name, str) for name in given):
        raise ValueError(f"{argument}={given!r} must be a list of names")
    return given


def no_others(
    function: Callable[..., Any], given: Mapping[str, Any], allowed: Mapping[str, type] | None = None
) -> None:
    """Whether what a function got beside its own arguments is something that it takes, and of the right kind."""
    allowed = allowed or {}
    for name, value in given.items():
        if name not in allowed:
            own = inspect.signature(function).parameters.values()
            names = [parameter.name for parameter in own if parameter.kind != parameter.VAR_KEYWORD]
            raise TypeError(f"{function.__name__}() has no argument {name!r}; it has {', '.join([*names, *allowed])}")
        if value is not None and not isinstance(value, allowed[name]):
            module = allowed[name].__module__.replace("._", ".")
            raise ValueError(f"{name}={value!r} must be a {module}.{allowed[name].__name__}")


def check_common(concurrency: Any, override_num_blocks: Any, include_paths: Any = False) -> None:
    for name, value in (("concurrency", concurrency), ("override_num_blocks", override_num_blocks)):
        if value is not None and (not is_count(value) or value < 1):
            raise ValueError(f"{name}={value!r} must be a whole number of 1 or more, or None")
    is_bool("include_paths", include_paths)


def is_bool(name: str, value: Any) -> None:
    if not isinstance(value, bool):
        raise ValueError(f"{name}={value!r} must be True or False")


def is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def count(n: Any) -> int:
    if not is_count(n):
        raise ValueError(f"n={n!r} must be a whole number of 0 or more")
    return int(n)


def called(function: str, paths: Paths) -> str:
    """As the user called it, without credentials or options of an address."""
    given = [str(path).partition("?")[0] for path in (paths if isinstance(paths, list | tuple) else [paths])]
    shown = [f"{head}://{rest.rpartition('@')[2]}" if rest else head for head, _, rest in map(_parts, given)]
    more = f", ... {len(shown) - 1} more" if len(shown) > 1 else ""
    return f"{function}({shown[0]!r}{more})"


def _parts(path: str) -> tuple[str, str, str]:
    return path.partition("://")
