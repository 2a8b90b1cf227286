"""`paceline report RUN [-o FILE]`: write one self-contained HTML page about a run."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from paceline._commands import cli_args, cli_output, searches


def main(arguments: Sequence[str]) -> int:
    parser = cli_args.CommandParser(
        "report",
        "Writes one HTML page about a run or a search, with plots, ends of logs, failures and configuration. It needs "
        "no server and no network. It contains the run's configuration and code: check it before you share it.",
        "paceline report resnet -o resnet.html",
    )
    parser.add_argument("-o", "--output", metavar="FILE", help="where to write it (RUN.html); - is standard output")
    args = parser.parse_args(arguments)
    location = cli_args.locate_run(args.run, or_search=True)
    from paceline._dashboard.report import build_report

    page = build_report(searches.read_listing(location.address or location.uri))
    if args.output == "-":
        if args.json:
            parser.error("--json and -o - cannot be combined: both write to standard output")
        sys.stdout.buffer.write(page)
        return 0
    target = Path(args.output).expanduser() if args.output else Path(f"{location.name}.html")
    with cli_output.replace_file(target) as part:
        part.write_bytes(page)
    if args.json:
        return cli_output.print_json({"file": str(target.absolute()), "num_bytes": len(page)})
    from paceline._view import formatting

    print(f"{cli_output.escape_line(str(target))}: {formatting.size(len(page))}")
    return 0
