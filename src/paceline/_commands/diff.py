"""`paceline diff RUN RUN`: compare the configuration, environment, code and metrics of two runs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from paceline._commands import cli_args, cli_output

if TYPE_CHECKING:
    from paceline._view.model import Detail, Diff, ValueChange

FINE = 0
SHORT, LONG = 30, 300
"""Characters of a value: up to SHORT it fits in a column; longer than LONG it is truncated."""


def main(arguments: Sequence[str]) -> int:
    args = _parser().parse_args(arguments)
    from paceline._view.diff import compare_runs

    diff = compare_runs(_read_detail(args.a), _read_detail(args.b))
    if args.json:
        return cli_output.print_json(diff)
    print(format_diff(diff))
    return FINE


def _parser() -> cli_args.CommandParser:
    parser = cli_args.CommandParser(
        "diff",
        "Compares two runs: the differences in configuration, environment and code, and all latest metrics.",
        "paceline diff resnet resnet-lower-lr",
    )
    parser.add_run_argument("a")
    parser.add_run_argument("b")
    parser.add_json_option()
    return parser


def _read_detail(run: str) -> Detail:
    return cli_args.open_reader(cli_args.locate_run(run)).detail()


def format_diff(diff: Diff) -> str:
    names = (diff.a.name, diff.b.name)
    if names[0] == names[1]:
        names = (diff.a.path, diff.b.path)
    parts = []
    for title, changes in (
        ("configuration", diff.config),
        ("scaling", diff.scaling),
        ("environment", diff.environment),
        ("metrics", diff.metrics),
    ):
        if changes:
            parts.append(f"{title}:\n{_format_changes(changes, names)}")
    for change in diff.code:
        parts.append(f"code, {cli_output.escape_line(change.file)}:\n{cli_output.escape_text(change.diff).rstrip()}")
    compared = {"configuration": diff.config, "code": diff.code, "environment": diff.environment}
    same = [title for title, changes in compared.items() if not changes]
    if same:
        parts.append(f"the same: {', '.join(same)}")
    return "\n\n".join(parts)


def _format_changes(changes: Sequence[ValueChange], names: tuple[str, str]) -> str:
    rows = [(change.key, _format_value(change.a), _format_value(change.b)) for change in changes]
    short = [row for row in rows if len(row[1]) <= SHORT and len(row[2]) <= SHORT]
    lines = (
        [cli_output.format_table([("", *names), *short], indent="  ", within=cli_output.terminal_width())]
        if short
        else []
    )
    for key, a, b in rows:
        if len(a) > SHORT or len(b) > SHORT:
            lines += [
                cli_output.escape_line(f"  {key}"),
                cli_output.escape_line(f"  - {a}"),
                cli_output.escape_line(f"  + {b}"),
            ]
    return "\n".join(lines)


def _format_value(value: Any) -> str:
    from paceline._view import formatting

    if value is None:
        return "-"
    if isinstance(value, list) and all(isinstance(each, str) for each in value):
        import shlex

        return shlex.join(value)  # A command line, for example.
    return formatting.value(value, LONG)
