"""`paceline dashboard [PATH]`: serve all runs under a path to a browser on this machine."""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import sys
from collections.abc import Sequence
from typing import TextIO

from paceline._commands import cli_args, searches


def main(arguments: Sequence[str]) -> int:
    parser = cli_args.CommandParser(
        "dashboard",
        "Serves a page that shows all runs under a path, and opens it in the browser. Only this machine (127.0.0.1) "
        "can reach it, and only with its token. It is read-only without --allow-control. Ctrl-C ends it.",
        "paceline dashboard",
        "paceline dashboard s3://bucket/runs --port 8265 --no-browser",
        codes="0 ended with Ctrl-C, 2 it cannot be served",
        runs=(),
        json="print the address as JSON",
    )
    add = parser.add_argument
    add("path", nargs="?", metavar="PATH", help="a directory or an address (the storage path)")
    add("--host", default="127.0.0.1", help="where to listen (127.0.0.1)")
    add("--port", type=_parse_port, metavar="N", help="0: any free port (8265, or any free port if that is taken)")
    add("--token", help="that grants access (a random one)")
    add("--allow-control", action="store_true", help="let the page stop runs and profile them")
    add("--no-browser", action="store_true", help="open no browser; the address is printed in any case")
    args = parser.parse_args(arguments)
    root = cli_args.resolve_root(args.path)
    from paceline._dashboard.serve import serve

    with contextlib.redirect_stdout(_AddressAsJson(sys.stdout)) if args.json else contextlib.nullcontext():
        return serve(
            root,
            searches.open_search,
            host=args.host,
            port=args.port,
            token=args.token,
            control=args.allow_control,
            open_browser=not args.no_browser,
        )


class _AddressAsJson(io.StringIO):
    """Turns the one line the server prints, its address, into a JSON document."""

    def __init__(self, out: TextIO) -> None:
        super().__init__()
        self._out = out

    def flush(self) -> None:
        address = self.getvalue().strip()
        if address:
            print(json.dumps({"address": address}), file=self._out, flush=True)
            self.seek(0)
            self.truncate()


def _parse_port(text: str) -> int:
    number = cli_args.parse_non_negative_int(text)
    if number > 65535:
        raise argparse.ArgumentTypeError(f"{text} is not a port from 0 to 65535")
    return number
