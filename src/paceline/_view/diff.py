"""Compares two runs: configuration, environment, code and results. Pure."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping
from typing import Any

from paceline._core.arguments import flatten_dict
from paceline._view.model import CodeChange, Diff, RunSnapshot, ValueChange

_MAX_COMPARED_CHARS = 200_000
"""Files up to this many characters are compared line by line."""


def compare_runs(a: RunSnapshot, b: RunSnapshot) -> Diff:
    return Diff(
        a=a.summary,
        b=b.summary,
        config=find_changes(a.config, b.config),
        scaling=find_changes(a.scaling, b.scaling),
        environment=find_changes(a.environment, b.environment),
        code=tuple(_compare_code(a.code, b.code)),
        metrics=tuple(
            ValueChange(name, a.summary.metrics.get(name), b.summary.metrics.get(name))
            for name in dict.fromkeys((*a.summary.metrics, *b.summary.metrics))
        ),
    )


def find_changes(a: Mapping[str, Any], b: Mapping[str, Any]) -> tuple[ValueChange, ...]:
    """Return the values that differ, by path: `optimizer.lr`. Lists are compared as a whole."""
    values_a, values_b = flatten_dict(a, "."), flatten_dict(b, ".")
    return tuple(
        ValueChange(key, values_a.get(key), values_b.get(key))
        for key in dict.fromkeys((*values_a, *values_b))
        if key not in values_a or key not in values_b or not _is_same(values_a[key], values_b[key])
    )


def _is_same(a: Any, b: Any) -> bool:
    # To whoever reads a configuration, True is not 1.
    return type(a) is type(b) and bool(a == b)


def _compare_code(a: Mapping[str, Any], b: Mapping[str, Any]) -> Iterator[CodeChange]:
    text_a, text_b = _describe_code(a), _describe_code(b)
    if text_a != text_b:
        yield CodeChange("", _make_unified_diff(text_a, text_b, "code"))
    values_a, values_b = _get_sources(a), _get_sources(b)
    for file in dict.fromkeys((*values_a, *values_b)):
        if values_a.get(file) != values_b.get(file):
            yield CodeChange(file, _make_unified_diff(values_a.get(file, ""), values_b.get(file, ""), file))


def _describe_code(code: Mapping[str, Any]) -> str:
    """Return script, function and commit, one line each."""
    details = {key: value for key, value in code.items() if key != "sources"}
    return "".join(f"{key}: {value}\n" for key, value in sorted(flatten_dict(details, ".").items()))


def _get_sources(code: Mapping[str, Any]) -> dict[str, str]:
    sources = code.get("sources")
    if not isinstance(sources, Mapping):
        return {}
    return {str(file): text for file, text in sources.items() if isinstance(text, str)}


def _make_unified_diff(a: str, b: str, file: str) -> str:
    if len(a) > _MAX_COMPARED_CHARS or len(b) > _MAX_COMPARED_CHARS:
        return f"{file} differs: {len(a)} and {len(b)} characters, too many to compare line by line\n"
    lines = difflib.unified_diff(a.splitlines(True), b.splitlines(True), f"a/{file}", f"b/{file}")
    return "".join(line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n" for line in lines)
