"""The `paceline` command: finds the module of a subcommand and passes it the remaining arguments.

A subcommand is a module with its own parser and a `main(arguments) -> exit code`. Only the requested one is imported,
so help and usage errors stay fast. Errors, Ctrl-C and closed pipes are handled here for all of them.
"""

import argparse
import gc
import importlib
import os
import sys
from collections.abc import Sequence

import paceline

COMMANDS = {
    "init": ("paceline._commands.init", "write a small training script to start from"),
    "ls": ("paceline._commands.ls", "list the runs under a path: state, progress, best metric"),
    "show": ("paceline._commands.show", "show one run: workers, attempts, causes of failures, time"),
    "logs": ("paceline._commands.logs", "print the output of a run's workers; -f follows it"),
    "metrics": ("paceline._commands.metrics", "print the metrics of a run, or export them as CSV or Parquet"),
    "checkpoints": ("paceline._commands.checkpoints", "list, verify, export or prune the checkpoints of a run"),
    "prune": ("paceline._commands.prune", "show the space that runs take, and remove leftovers of old runs"),
    "diff": ("paceline._commands.diff", "compare two runs: configuration, code, metrics"),
    "stop": ("paceline._commands.stop", "ask a run to stop at its next report, or now"),
    "stacks": ("paceline._commands.stacks", "print the current stack of every rank"),
    "profile": ("paceline._commands.profile", "profile the workers of a run for a few seconds"),
    "resume": ("paceline._commands.resume", "run the script of a run again to continue it"),
    "run": ("paceline._commands.run", "run a script in many processes, like torchrun"),
    "launch": ("paceline._commands.launch", "write or submit a Slurm job that runs a script"),
    "attach": ("paceline._commands.attach", "follow a detached run on a cluster"),
    "migrate": ("paceline._commands.migrate", "change the imports of Ray scripts, and list what differs"),
    "verify-resume": ("paceline._commands.verify_resume", "prove that a script resumes exactly"),
    "dashboard": ("paceline._commands.dashboard", "show all runs under a path in the browser"),
    "report": ("paceline._commands.report", "write a self-contained HTML page about a run"),
    "doctor": ("paceline._commands.doctor", "check this machine for problems"),
}

LOOKS = {"ls", "show", "logs", "metrics", "checkpoints", "diff"}
"""Short read-only commands. They skip garbage collection and interpreter shutdown, which would take a fifth of their
time."""

BAD_USAGE, CTRL_C, PIPE_CLOSED = 2, 130, 141


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="paceline",
        description="Commands:\n" + "\n".join(f"  {name:<16} {about}" for name, (_, about) in COMMANDS.items()),
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog="`paceline COMMAND --help` explains one of them, with an example.",
    )
    parser.add_argument("--version", action="version", version=f"paceline {paceline.__version__}")
    parser.add_argument("command", choices=COMMANDS, metavar="COMMAND")
    parser.add_argument("rest", nargs=argparse.REMAINDER, metavar="...")
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:  # The command was started without it.
            setattr(sys, name, open(os.devnull, "w"))  # noqa: SIM115
    line = parser.parse_args(sys.argv[1:] if arguments is None else arguments)
    module, _ = COMMANDS[line.command]
    is_short = arguments is None and line.command in LOOKS
    if is_short:
        gc.disable()
    code = _run_command(module, line.rest)
    if is_short:
        sys.stderr.flush()
        os._exit(code)
    return code


def _run_command(module: str, rest: Sequence[str]) -> int:
    try:
        code = _call_main(module, rest)
        sys.stdout.flush()  # Flush here, where a closed pipe can still be handled.
    except BrokenPipeError:
        # Discard whatever else is printed while the interpreter exits.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return PIPE_CLOSED
    except KeyboardInterrupt:
        return CTRL_C
    return code


def _call_main(module: str, rest: Sequence[str]) -> int:
    from paceline._core.errors import PacelineError

    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")  # Sparklines on a terminal without Unicode.
    try:
        code: int = importlib.import_module(module).main(rest)
    except BrokenPipeError:
        raise
    except (PacelineError, OSError, ImportError, ValueError) as error:
        from paceline._commands.cli_output import print_error

        print_error(str(error))
        return BAD_USAGE
    return code


if __name__ == "__main__":
    sys.exit(main())
