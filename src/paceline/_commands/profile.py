"""`paceline profile RUN`: profile the workers of a live run for a few seconds."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
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
    parser = cli_args.CommandParser(
        "profile",
        "Profiles the workers of a live run, with no change to their code: a flame graph of Python and, where they\n"
        "use torch, a trace of its operations and of the kernels of their GPUs. The files are in profiles/ of the run.",
        "paceline profile resnet --seconds 10 --rank 0",
        codes="0 profiled, 1 no profile, 2 the run could not be reached",
    )
    parser.add_argument("--seconds", type=float, default=10.0, metavar="S", help="how long to profile (10)")
    parser.add_rank_option(" (the first 8)")
    args = parser.parse_args(arguments)
    from paceline._control.requests import MAX_PROFILE_S, ProfileRequest, send_request

    if not 0.0 < args.seconds <= MAX_PROFILE_S:
        parser.error(f"--seconds {args.seconds:g}: a profile may take up to {MAX_PROFILE_S:g} s")
    location = cli_args.locate_run(args.run)
    on_accepted = None if args.json else cli_output.print_accepted
    answer = send_request(location, ProfileRequest(args.seconds, tuple(args.rank)), on_accepted=on_accepted)
    cli_output.print_answer(answer, _format_files(location, answer) if answer.ok else None, as_json=args.json)
    for problem in answer.problems if answer.ok and not args.json else ():
        cli_output.print_error(problem)
    if answer.ok and not args.json:
        _print_saves(location)
    if answer.ok:
        return FINE
    return NOT_ASKED if answer.state in ("undriven", "refused") else NO_PROFILE


def _print_saves(location: RunLocation) -> None:
    """Print what checkpoints take, which no profile of Python shows: other threads and the driver write them."""
    from paceline._commands import run_sections

    if lines := [*run_sections.format_saves(cli_args.open_reader(location).snapshot().saves)]:
        print("\n".join(["", "saves", *lines]))


def _format_files(location: RunLocation, answer: Answer) -> Iterator[str]:
    suffixes: dict[str, str] = {}
    for file in answer.files:
        suffixes.setdefault(file.kind, file.path.rpartition("/")[2].partition(".")[2])
        yield cli_output.escape_line(f"{location.uri}/{file.path}")
    for kind, suffix in suffixes.items():
        yield cli_output.escape_line(f"  .{suffix}: {_KINDS.get(kind, kind)}")
