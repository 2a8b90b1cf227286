"""`paceline profile RUN`: profile the workers of a live run for a few seconds."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from paceline._commands import cli_args, cli_output

if TYPE_CHECKING:
    from paceline._control.requests import Answer
    from paceline._storage.run_location import RunLocation

FINE, NO_PROFILE, NOT_ASKED = 0, 1, 2
_KINDS = {
    "flame": "flame graph of Python: open it in a browser",
    "trace": "torch's operations: open it in ui.perfetto.dev or chrome://tracing",
    "stacks-folded": "the same stacks as text, for other tools",
}


def main(arguments: Sequence[str]) -> int:
    parser = _parser()
    args = parser.parse_args(arguments)
    from paceline._control.requests import MAX_PROFILE_S, ProfileRequest, send_request

    if not 0.0 < args.seconds <= MAX_PROFILE_S:
        parser.error(f"--seconds {args.seconds:g}: a profile may take up to {MAX_PROFILE_S:g} s")
    location = cli_args.locate_run(args.run)

    def print_progress(answer: Answer) -> None:
        if not args.json:
            print(cli_output.escape_text(answer.text), file=sys.stderr)

    answer = send_request(location, ProfileRequest(args.seconds, tuple(args.rank)), on_accepted=print_progress)
    if args.json:
        cli_output.print_json(answer)
    elif answer.ok:
        _print_files(location, answer)
    else:
        cli_output.print_error(answer.text)
    if answer.ok:
        return FINE
    return NOT_ASKED if answer.state in ("undriven", "refused") else NO_PROFILE


def _parser() -> cli_args.CommandParser:
    parser = cli_args.CommandParser(
        "profile",
        "Profiles the workers of a live run, with no change to their code: a flame graph of Python and, where they\n"
        "use torch, a trace of its operations and of the kernels of their GPUs. The files are in profiles/ of the run.",
        "paceline profile resnet --seconds 10 --rank 0",
        codes="0 there is a profile, 1 there is none, 2 the run could not be reached",
    )
    parser.add_run_argument()
    parser.add_argument("--seconds", type=float, default=10.0, metavar="S", help="how long to profile (10)")
    parser.add_rank_option(" (the first 8)")
    parser.add_json_option()
    return parser


def _print_files(location: RunLocation, answer: Answer) -> None:
    for file in answer.files:
        print(cli_output.escape_line(f"{location.uri}/{file.path}"))
    for kind in dict.fromkeys(file.kind for file in answer.files):
        print(cli_output.escape_line(f"  .{_file_suffix(answer, kind)}: {_KINDS.get(kind, kind)}"))
    for problem in answer.problems:
        cli_output.print_error(problem)


def _file_suffix(answer: Answer, kind: str) -> str:
    path = next(file.path for file in answer.files if file.kind == kind)
    return path.rpartition("/")[2].partition(".")[2]
