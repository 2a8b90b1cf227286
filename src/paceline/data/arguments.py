"""Argument checks that the `read_*` and `from_*` functions share; the rest is in `paceline._core.arguments`."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

import pyarrow.compute as pc

from paceline._core.arguments import bad_value, check_bool, check_int
from paceline.data.expressions import Expr, parse_expression
from paceline.data.sources.files import Paths


def parse_filter(value: Any) -> Any:
    if isinstance(value, str):
        return parse_expression(value)
    if value is None or isinstance(value, Expr | pc.Expression):
        return value
    raise bad_value("filter", "an expression: col('age') > 30, 'age > 30' or one of pyarrow.compute", value)


def check_extra_arguments(
    function: Callable[..., Any], values: Mapping[str, Any], allowed: Mapping[str, type] | None = None
) -> None:
    """Check that extra keyword arguments are allowed and have the right type."""
    allowed = allowed or {}
    for name, value in values.items():
        if name not in allowed:
            parameters = inspect.signature(function).parameters.values()
            names = [parameter.name for parameter in parameters if parameter.kind != parameter.VAR_KEYWORD]
            raise TypeError(f"{function.__name__}() has no argument {name!r}; it has {', '.join([*names, *allowed])}")
        if value is not None and not isinstance(value, allowed[name]):
            module = allowed[name].__module__.replace("._", ".")
            raise bad_value(name, f"a {module}.{allowed[name].__name__}", value)


def check_common(concurrency: Any, override_num_blocks: Any, include_paths: Any = False) -> None:
    check_int("concurrency", concurrency, at_least=1, optional=True)
    check_int("override_num_blocks", override_num_blocks, at_least=1, optional=True)
    check_bool("include_paths", include_paths)


def format_call(function: str, paths: Paths) -> str:
    """Format the call for messages, without credentials or URL options."""
    texts = [str(path).partition("?")[0] for path in (paths if isinstance(paths, list | tuple) else [paths])]
    scheme, _, rest = texts[0].partition("://")
    first = f"{scheme}://{rest.rpartition('@')[2]}" if rest else scheme
    more = f", ... {len(texts) - 1} more" if len(texts) > 1 else ""
    return f"{function}({first!r}{more})"
