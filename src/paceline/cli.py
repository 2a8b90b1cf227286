"""The command `paceline`: finds the module of a command and hands it the rest of the line.

A command is a module with a `main(arguments) -> exit code` and a parser of its own. Only the one that is asked for is
imported, so that help and mistakes cost nothing.
"""

import argparse
import importlib
import sys
from collections.abc import Sequence

import paceline

COMMANDS = {
    "attach": ("paceline._commands.attach", "follow a run that is driven on a cluster"),
    "run": ("paceline._commands.run", "run a script in many processes, as torchrun does"),
    "verify-resume": ("paceline._commands.verify_resume", "prove that a script resumes exactly"),
}


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="paceline",
        description="Commands:\n" + "\n".join(f"  {name:<16} {about}" for name, (_, about) in COMMANDS.items()),
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog="`paceline COMMAND --help` tells more about one of them.",
    )
    parser.add_argument("--version", action="version", version=f"paceline {paceline.__version__}")
    parser.add_argument("command", choices=COMMANDS, metavar="COMMAND")
    parser.add_argument("rest", nargs=argparse.REMAINDER, metavar="...")
    line = parser.parse_args(sys.argv[1:] if arguments is None else arguments)
    module, _ = COMMANDS[line.command]
    code: int = importlib.import_module(module).main(line.rest)
    return code


if __name__ == "__main__":
    sys.exit(main())
