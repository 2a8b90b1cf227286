"""Label selectors: choose nodes of a cluster by their labels.

A selector maps a label to a condition: `"a"`, `"!a"` (anything else, or no label), `"in(a,b)"` or `"!in(a,b)"`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

_NAME = r"[A-Za-z0-9](?:[A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?"
_LABEL = re.compile(rf"(?:{_NAME}/)?{_NAME}")
_VALUE = re.compile(rf"(?P<no>!?)(?:(?P<one>{_NAME})|in\((?P<some>\s*{_NAME}\s*(?:,\s*{_NAME}\s*)*)\))")

ALLOWED_VALUES = "'a', '!a', 'in(a,b)' or '!in(a,b)'"


def find_selector_problem(selector: Mapping[str, str]) -> str | None:
    """Return what is wrong with a selector, or None."""
    for label, value in selector.items():
        if not isinstance(label, str) or not _LABEL.fullmatch(label):
            return f"a label must be a name such as 'zone' or 'ray.io/market-type', got {label!r}"
        if not isinstance(value, str) or not _VALUE.fullmatch(value):
            return f"the condition of label {label!r} must be {ALLOWED_VALUES}, got {value!r}"
    return None


def matches_selector(selector: Mapping[str, str], labels: Mapping[str, str]) -> bool:
    return all(_matches_value(labels.get(label), condition) for label, condition in selector.items())


def _matches_value(value: str | None, condition: str) -> bool:
    parts = _VALUE.fullmatch(condition)
    assert parts is not None, f"{condition!r} has not been checked"
    allowed = (parts["one"] or parts["some"]).split(",")
    return (value in (each.strip() for each in allowed)) != bool(parts["no"])
