"""`paceline report RUN [-o FILE]`: write one self-contained HTML page about a run."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from paceline._commands import cli_args, cli_output

FINE = 0


def main(arguments: Sequence[str]) -> int:
    parser = cli_args.CommandParser(
        "report",
        "Writes one HTML page about a run or a search, with plots, logs' ends, failures and configuration. It needs no "
        "server and no network, and holds what the run's journal tells: look at it before you give it away.",
        "paceline report resnet -o resnet.html",
    )
    parser.add_run_argument()
    parser.add_argument("-o", "--output", metavar="FILE", help="where to write it (RUN.html); - is standard output")
    parser.add_json_option()
    asked = parser.parse_args(arguments)
    home = cli_args.locate_run(asked.run, or_search=True)
    from paceline._dashboard.report import build_report

    page = build_report(home.address or home.uri)
    if asked.output == "-":
        if asked.json:
            parser.error("--json says where the page is; with -o - it would stand in the page")
        sys.stdout.buffer.write(page)
        return FINE
    target = Path(asked.output).expanduser() if asked.output else Path(f"{home.name}.html")
    part = target.with_name(f".{target.name}.part")
    part.write_bytes(page)
    part.rename(target)
    if asked.json:
        return cli_output.print_json({"file": str(target.absolute()), "num_bytes": len(page)})
    from paceline._view import formatting

    print(f"{cli_output.escape_line(str(target))}: {formatting.size(len(page))}")
    return FINE
