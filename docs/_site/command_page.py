"""The page of the command line: what each command says of itself."""

import contextlib
import io
import os
from pathlib import Path

from paceline import cli

FILE = Path(cli.__file__)


def text() -> str:
    parts = [
        "# The commands\n",
        "What `--help` tells of each. [The command line](/watching/command-line.md) shows them at work.\n",
    ]
    parts.append(f"```text\n{_help()}\n```\n")
    parts += [f"## `paceline {name}`\n\n```text\n{_help(name)}\n```\n" for name in cli.COMMANDS]
    return "\n".join(parts)


def _help(*command: str) -> str:
    before = os.environ.get("COLUMNS")
    os.environ["COLUMNS"] = "80"
    told = io.StringIO()
    try:
        with contextlib.redirect_stdout(told), contextlib.suppress(SystemExit):
            cli.main([*command, "--help"])
    finally:
        if before is None:
            del os.environ["COLUMNS"]
        else:
            os.environ["COLUMNS"] = before
    return told.getvalue().strip()
