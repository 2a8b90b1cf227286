"""`paceline diff RUN RUN`: compare the configuration, environment, code and metrics of two runs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from paceline._commands import cli_args, cli_output

if TYPE_CHECKING:
    from paceline._view.model import Diff, ValueChange

SHORT, LONG = 30, 300
"""Characters of a value: up to SHORT it fits in a column; longer than LONG it is truncated."""


def main(arguments: Sequence[str]) -> int:
    parser = cli_args.CommandParser(
        "diff",
        "Compares two runs: the differences in configuration, environment and code, and all latest metrics.",
        "paceline diff resnet resnet-lower-lr",
        runs=("a", "b"),
    )
    args = parser.parse_args(arguments)
    from paceline._view.diff import compare_runs

    a, b = (cli_args.open_reader(cli_args.locate_run(run)).snapshot() for run in (args.a, args.b))
    diff = compare_runs(a, b)
    if args.json:
        return cli_output.print_json(diff)
    print(format_diff(diff))
    return 0


def format_diff(diff: Diff) -> str:
    names = (diff.a.name, diff.b.name)
    if names[0] == names[1]:
        names = (diff.a.path, diff.b.path)
    titles = {"configuration": diff.config, "scaling": diff.scaling, "environment": diff.environment}
    titles["metrics"] = diff.metrics
    parts = [f"{title}:\n{_format_changes(changes, names)}" for title, changes in titles.items() if changes]
    for change in diff.code:
        parts.append(f"code, {cli_output.escape_line(change.file)}:\n{cli_output.escape_text(change.diff).rstrip()}")
    compared = {"configuration": diff.config, "code": diff.code, "environment": diff.environment}
    if same := [title for title, changes in compared.items() if not changes]:
        parts.append(f"the same: {', '.join(same)}")
    return "\n\n".join(parts)


def _format_changes(changes: Sequence[ValueChange], names: tuple[str, str]) -> str:
    rows = [(change.key, _format_value(change.a), _format_value(change.b)) for change in changes]
    short = [row for row in rows if len(row[1]) <= SHORT and len(row[2]) <= SHORT]
    lines = []
    if short:
        lines.append(cli_output.format_table([("", *names), *short], indent="  ", within=cli_output.terminal_width()))
    for key, a, b in rows:
        if len(a) > SHORT or len(b) > SHORT:
            lines += map(cli_output.escape_line, (f"  {key}", f"  - {a}", f"  + {b}"))
    return "\n".join(lines)


def _format_value(value: Any) -> str:
    from paceline._view import formatting

    if value is None:
        return "-"
    if isinstance(value, list) and all(isinstance(each, str) for each in value):
        import shlex

        return shlex.join(value)  # A command line, for example.
    return formatting.value(value, LONG)
