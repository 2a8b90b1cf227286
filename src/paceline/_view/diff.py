"""What differs between two runs: what they were asked to do, with what, with which code, and what came of it. Pure."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping
from typing import Any

from paceline._view.model import Changed, CodeChange, Detail, Diff

_WHOLE = 200_000
"""Characters of a file up to which its lines are compared."""


def differences(a: Detail, b: Detail) -> Diff:
    return Diff(
        a=a.summary,
        b=b.summary,
        config=changes(a.config, b.config),
        scaling=changes(a.scaling, b.scaling),
        environment=changes(a.environment, b.environment),
        code=tuple(_code(a.code, b.code)),
        metrics=_metrics(a.summary.metrics, b.summary.metrics),
    )


def changes(a: Mapping[str, Any], b: Mapping[str, Any]) -> tuple[Changed, ...]:
    """What is not the same in both, by path: `optimizer.lr`. Lists are compared as wholes."""
    left, right = dict(_leaves(a)), dict(_leaves(b))
    return tuple(
        Changed(key, left.get(key), right.get(key))
        for key in dict.fromkeys((*left, *right))
        if key not in left or key not in right or not _same(left[key], right[key])
    )


def _leaves(value: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, item in value.items():
        if isinstance(item, Mapping) and item:
            yield from _leaves(item, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", item


def _same(a: Any, b: Any) -> bool:
    # True is not 1 to whoever reads a configuration.
    return type(a) is type(b) and bool(a == b)


def _metrics(a: Mapping[str, Any], b: Mapping[str, Any]) -> tuple[Changed, ...]:
    return tuple(Changed(name, a.get(name), b.get(name)) for name in dict.fromkeys((*a, *b)))


def _code(a: Mapping[str, Any], b: Mapping[str, Any]) -> Iterator[CodeChange]:
    told_a, told_b = _told(a), _told(b)
    if told_a != told_b:
        yield CodeChange("", _unified(told_a, told_b, "code"))
    left, right = _sources(a), _sources(b)
    for file in dict.fromkeys((*left, *right)):
        if left.get(file) != right.get(file):
            yield CodeChange(file, _unified(left.get(file, ""), right.get(file, ""), file))


def _told(code: Mapping[str, Any]) -> str:
    """Script, function and commit, a line each."""
    about = {key: value for key, value in code.items() if key != "sources"}
    return "".join(f"{key}: {value}\n" for key, value in sorted(_leaves(about)))


def _sources(code: Mapping[str, Any]) -> dict[str, str]:
    sources = code.get("sources")
    if not isinstance(sources, Mapping):
        return {}
    return {str(file): text for file, text in sources.items() if isinstance(text, str)}


def _unified(a: str, b: str, file: str) -> str:
    if len(a) > _WHOLE or len(b) > _WHOLE:
        return f"{file} differs: {len(a)} and {len(b)} characters, too many to compare line by line\n"
    lines = difflib.unified_diff(a.splitlines(True), b.splitlines(True), f"a/{file}", f"b/{file}")
    return "".join(line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n" for line in lines)
