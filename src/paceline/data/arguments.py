"""Argument checks for the functions of `read.py`. Errors name the argument and what is allowed."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pyarrow.compute as pc

from paceline.data.expressions import Expr, parse_expression
from paceline.data.files import Paths


def parse_filter(given: Any) -> Any:
    if isinstance(given, str):
        return parse_expression(given)
    if given is None or isinstance(given, Expr | pc.Expression):
        return given
    raise ValueError(
        f"filter={given!r} must be an expression such as paceline.data.col('age') > 30, the same as text, or one of "
        "pyarrow.compute"
    )


def check_names(argument: str, given: Any) -> Sequence[str]:
    if isinstance(given, str) or not isinstance(given, Sequence) or not all(isinstance(name, str) for name in given):
        raise ValueError(f"{argument}={given!r} must be a list of names")
    return given


def check_extra_arguments(
    function: Callable[..., Any], given: Mapping[str, Any], allowed: Mapping[str, type] | None = None
) -> None:
    """Check that extra keyword arguments are allowed and have the right type."""
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
    check_bool("include_paths", include_paths)


def check_bool(name: str, value: Any) -> None:
    if not isinstance(value, bool):
        raise ValueError(f"{name}={value!r} must be True or False")


def is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def check_count(n: Any) -> int:
    if not is_count(n):
        raise ValueError(f"n={n!r} must be a whole number of 0 or more")
    return int(n)


def format_call(function: str, paths: Paths) -> str:
    """Format the call for messages, without credentials or URL options."""
    given = [str(path).partition("?")[0] for path in (paths if isinstance(paths, list | tuple) else [paths])]
    shown = [f"{head}://{rest.rpartition('@')[2]}" if rest else head for head, _, rest in map(_split_scheme, given)]
    more = f", ... {len(shown) - 1} more" if len(shown) > 1 else ""
    return f"{function}({shown[0]!r}{more})"


def _split_scheme(path: str) -> tuple[str, str, str]:
    return path.partition("://")
