"""Checks of arguments, with one wording: `num_workers must be a positive integer, got -1`.

A check returns the value it was given, so that it can stand in an assignment. Checks that concern one module alone
live there, and use `bad_value` for the sentence.
"""

from __future__ import annotations

import functools
import inspect
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeGuard, TypeVar, get_type_hints

from paceline._core.call_errors import make_argument_error

F = TypeVar("F", bound=Callable[..., Any])


def is_int(value: object) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool)


def is_number(value: object) -> TypeGuard[int | float]:
    """Whether it is an int or a float; infinite and nan are numbers too."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def is_finite_number(value: object) -> TypeGuard[int | float]:
    try:
        return is_number(value) and math.isfinite(value)
    except OverflowError:  # an int beyond the range of a float
        return True


def bad_value(name: str, expected: str, value: object, hint: str | None = None) -> ValueError:
    """Return the error for an argument: `name must be <expected>, got <value>`."""
    return ValueError(f"{name} must be {expected}, got {value!r:.200}" + (f"\n\nhint: {hint}" if hint else ""))


def check_int(
    name: str, value: Any, *, at_least: int | None = None, at_most: int | None = None, optional: bool = False
) -> Any:
    is_within = is_int(value) and (at_least is None or value >= at_least) and (at_most is None or value <= at_most)
    if is_within or (optional and value is None):
        return value
    if at_most is not None:
        expected = f"an integer from {at_least} to {at_most}" if at_least is not None else f"an integer up to {at_most}"
    else:
        named = {None: "an integer", 0: "a non-negative integer", 1: "a positive integer"}
        expected = named.get(at_least, f"an integer of at least {at_least}")
    raise bad_value(name, expected + (" or None" if optional else ""), value)


def check_number(
    name: str,
    value: Any,
    *,
    at_least: float | None = None,
    above: float | None = None,
    at_most: float | None = None,
    below: float | None = None,
    optional: bool = False,
) -> Any:
    """Check a finite number against bounds: `at_least` and `at_most` may be reached, `above` and `below` may not."""
    if optional and value is None:
        return value
    if (
        is_finite_number(value)
        and (at_least is None or value >= at_least)
        and (above is None or value > above)
        and (at_most is None or value <= at_most)
        and (below is None or value < below)
    ):
        return value
    bounds = (("of at least", at_least), ("above", above), ("of at most", at_most), ("below", below))
    limits = " and ".join(f"{word} {limit:g}" for word, limit in bounds if limit is not None)
    expected = {"of at least 0": "a non-negative number", "above 0": "a positive number"}.get(
        limits, f"a number {limits}".rstrip()
    )
    raise bad_value(name, expected + (" or None" if optional else ""), value)


def check_bool(name: str, value: Any, *, optional: bool = False) -> Any:
    if isinstance(value, bool) or (optional and value is None):
        return value
    raise bad_value(name, "True, False or None" if optional else "True or False", value)


def check_choice(name: str, value: Any, choices: Iterable[Any], *, hint: str | None = None) -> Any:
    choices = list(choices)
    if not any(value is choice or (type(value) is type(choice) and value == choice) for choice in choices):
        raise bad_value(name, join_or(map(repr, choices)), value, hint)
    return value


def check_instance(
    name: str, value: Any, kind: type | tuple[type, ...], expected: str, *, optional: bool = False
) -> Any:
    """`expected` is the noun phrase of the message: `a paceline.train.RunConfig`."""
    if isinstance(value, kind) or (optional and value is None):
        return value
    raise bad_value(name, expected + (" or None" if optional else ""), value)


def check_callable(name: str, value: Any, *, optional: bool = False) -> Callable[..., Any]:
    if callable(value) or (optional and value is None):
        return value  # type: ignore[no-any-return]
    raise bad_value(name, "a function" + (" or None" if optional else ""), value)


def check_names(name: str, value: Any) -> Sequence[str]:
    """Check a list (or another sequence) of strings; a string alone is refused, as it would be read by letters."""
    if isinstance(value, str) or not isinstance(value, Sequence) or not all(isinstance(each, str) for each in value):
        raise bad_value(name, "a list of names", value)
    return value


def check_file_name(name: str, value: Any) -> str:
    """Check the name of a file in a directory: no path, and not hidden."""
    if not isinstance(value, str) or not value or "/" in value or value.startswith("."):
        raise bad_value(name, "a plain file name", value)
    return value


def parse_metric_names(name: str, value: Any) -> dict[str, str] | None:
    """Parse a choice of metrics into reported name -> original name; None, which stands for all metrics, stays None."""
    if value is None:
        return None
    names = [value] if isinstance(value, str) else value
    pairs = {each: each for each in names} if isinstance(names, Sequence) else names
    if not isinstance(pairs, Mapping) or not all(isinstance(each, str) for pair in pairs.items() for each in pair):
        raise bad_value(name, "a name, a list of names or a dict of names", value)
    return dict(pairs)


def parse_env_vars(runtime_env: Mapping[str, Any] | None) -> dict[str, str]:
    """Return the environment variables in a `worker_runtime_env`."""
    env_vars = (runtime_env or {}).get("env_vars") or {}
    if not isinstance(env_vars, Mapping) or not all(isinstance(x, str) for each in env_vars.items() for x in each):
        raise bad_value("env_vars of worker_runtime_env", "a dict of strings such as {'NAME': '1'}", env_vars)
    return dict(env_vars)


def join_or(words: Iterable[str]) -> str:
    """Join words as a sentence does: `'min', 'max' or 'mean'`."""
    *first, last = words
    return f"{', '.join(first)} or {last}" if first else last


def join_first(words: Sequence[str], at_most: int = 3) -> str:
    """Join the first words, and say how many more there are: `a, b, c and 2 more`."""
    more = f" and {len(words) - at_most} more" if len(words) > at_most else ""
    return ", ".join(words[:at_most]) + more


def find_nearest(name: str, known: Iterable[str]) -> str | None:
    """Return the known name that a misspelt one is most like; None if it is like none."""
    import difflib

    return next(iter(difflib.get_close_matches(name, list(known), 1, 0.7)), None)


def flatten_dict(values: Mapping[Any, Any], separator: str = "/", prefix: str = "") -> dict[str, Any]:
    """Give nested dicts one level: `{"a": {"b": 1}}` becomes `{"a/b": 1}`. An empty dict stays a value."""
    flat: dict[str, Any] = {}
    for key, value in values.items():
        name = f"{prefix}{separator}{key}" if prefix else str(key)
        if isinstance(value, Mapping) and value:
            flat.update(flatten_dict(value, separator, name))
        else:
            flat[name] = value
    return flat


def with_options(options: type, *, rest: str = "", **defaults: Any) -> Callable[[F], F]:
    """Pass a function all its `**options: Unpack[...]`, which several functions share, and show them in its signature.

    `options` is a TypedDict of `Annotated[type, default]`; `defaults` are those that differ for this function. An
    unknown argument raises a TypeError that lists the known ones; if `rest` names an argument of the function, that one
    gets all unknown ones as a dict.
    """

    def decorate(function: F) -> F:
        own = inspect.signature(function)
        types = get_type_hints(options, include_extras=True)
        defaults_here = {name: defaults.get(name, kind.__metadata__[0]) for name, kind in types.items()}
        parameters = {name: each for name, each in own.parameters.items() if each.kind is not each.VAR_KEYWORD}
        parameters.pop(rest, None)
        for name, kind in types.items():
            parameters[name] = inspect.Parameter(
                name, inspect.Parameter.KEYWORD_ONLY, default=defaults_here[name], annotation=kind.__origin__
            )

        @functools.wraps(function)
        def call(*args: Any, **arguments: Any) -> Any:
            others = {name: arguments.pop(name) for name in [*arguments] if name not in parameters}
            if others and not rest:
                raise make_argument_error(call, function.__name__, next(iter(others)))
            return function(*args, **{**defaults_here, **arguments, **({rest: others} if rest else {})})

        shown = [*parameters.values(), *([inspect.Parameter(rest, inspect.Parameter.VAR_KEYWORD)] if rest else ())]
        call.__signature__ = own.replace(parameters=shown)  # type: ignore[attr-defined]
        return call  # type: ignore[return-value]

    return decorate


_NAME = r"[A-Za-z0-9](?:[A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?"
_LABEL = re.compile(rf"(?:{_NAME}/)?{_NAME}")
_VALUE = re.compile(rf"(?P<no>!?)(?:(?P<one>{_NAME})|in\((?P<some>\s*{_NAME}\s*(?:,\s*{_NAME}\s*)*)\))")


def find_selector_problem(selector: Mapping[str, str]) -> str | None:
    """Return what is wrong with a label selector, which maps labels of nodes to conditions, or None.

    A condition is `"a"`, `"!a"` (anything else, or no label), `"in(a,b)"` or `"!in(a,b)"`.
    """
    for label, value in selector.items():
        if not isinstance(label, str) or not _LABEL.fullmatch(label):
            return f"a label must be a name such as 'zone' or 'ray.io/market-type', got {label!r}"
        if not isinstance(value, str) or not _VALUE.fullmatch(value):
            return f"the condition of label {label!r} must be 'a', '!a', 'in(a,b)' or '!in(a,b)', got {value!r}"
    return None


def matches_selector(selector: Mapping[str, str], labels: Mapping[str, str]) -> bool:
    return all(_matches_value(labels.get(label), condition) for label, condition in selector.items())


def _matches_value(value: str | None, condition: str) -> bool:
    parts = _VALUE.fullmatch(condition)
    assert parts is not None, f"{condition!r} has not been checked"
    allowed = (parts["one"] or parts["some"]).split(",")
    return (value in (each.strip() for each in allowed)) != bool(parts["no"])
