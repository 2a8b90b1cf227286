"""`paceline diff RUN RUN`: what differs between two runs: configuration, environment, code, and what they came to."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from paceline._commands import asking, telling

if TYPE_CHECKING:
    from paceline._view.model import Changed, Detail, Diff

FINE = 0
SHORT, LONG = 30, 300
"""Letters of a value: up to so many it stands in a column, and more are cut off."""


def main(arguments: Sequence[str]) -> int:
    asked = _parser().parse_args(arguments)
    from paceline._view.diff import differences

    found = differences(_detail(asked.a), _detail(asked.b))
    if asked.json:
        return telling.json(found)
    print(told(found))
    return FINE


def _parser() -> asking.Parser:
    parser = asking.Parser(
        "diff",
        "Compares two runs. Of configuration, environment and code what differs is shown, of the last metrics all.",
        "paceline diff resnet resnet-lower-lr",
    )
    parser.add_run("a")
    parser.add_run("b")
    parser.add_json()
    return parser


def _detail(run: str) -> Detail:
    from paceline._view.reading import RunReader

    reader = RunReader(asking.home_of(run))
    reader.refresh()
    return reader.detail()


def told(found: Diff) -> str:
    names = (found.a.name, found.b.name)
    if names[0] == names[1]:
        names = (found.a.path, found.b.path)
    parts = []
    for title, changes in (
        ("configuration", found.config),
        ("scaling", found.scaling),
        ("environment", found.environment),
        ("metrics", found.metrics),
    ):
        if changes:
            parts.append(f"{title}:\n{_changes(changes, names)}")
    for change in found.code:
        parts.append(f"code, {telling.line(change.file)}:\n{telling.clean(change.diff).rstrip()}")
    compared = {"configuration": found.config, "code": found.code, "environment": found.environment}
    same = [title for title, changes in compared.items() if not changes]
    if same:
        parts.append(f"the same: {', '.join(same)}")
    return "\n\n".join(parts)


def _changes(changes: Sequence[Changed], names: tuple[str, str]) -> str:
    told = [(change.key, _value(change.a), _value(change.b)) for change in changes]
    short = [row for row in told if len(row[1]) <= SHORT and len(row[2]) <= SHORT]
    lines = [telling.table([("", *names), *short], indent="  ", within=telling.width())] if short else []
    for key, a, b in told:
        if len(a) > SHORT or len(b) > SHORT:
            lines += [telling.line(f"  {key}"), telling.line(f"  - {a}"), telling.line(f"  + {b}")]
    return "\n".join(lines)


def _value(value: Any) -> str:
    from paceline._view import words

    if value is None:
        return "-"
    if isinstance(value, list) and all(isinstance(each, str) for each in value):
        import shlex

        return shlex.join(value)  # Arguments of a command, say.
    return words.value(value, LONG)
