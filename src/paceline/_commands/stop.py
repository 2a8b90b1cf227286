"""`paceline stop RUN`: ask the driver of a run or a search to stop it, at the next report or now."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from paceline._commands import cli_args, cli_output

if TYPE_CHECKING:
    from paceline._control.requests import Answer
    from paceline._storage.run_location import RunLocation

STOPPED, NOT_YET, NOT_ASKED = 0, 1, 2


def main(arguments: Sequence[str]) -> int:
    asked = _parser().parse_args(arguments)
    home = cli_args.locate_run(asked.run, or_search=True)
    answer = _stop_run(home, asked)
    if asked.json:
        cli_output.print_json(answer)
    elif answer.state in ("done", "undriven"):
        print(cli_output.escape_text(answer.text))
    else:
        cli_output.print_error(answer.text)
    if answer.state in ("done", "undriven", "gone"):
        return STOPPED
    return NOT_ASKED if answer.state == "refused" else NOT_YET


def _parser() -> cli_args.CommandParser:
    parser = cli_args.CommandParser(
        "stop",
        "Asks a run, a search or one of its trials to stop as Ctrl-C does: at its next report, with a checkpoint\n"
        "where the script makes one on stop. Waits for its end, and says what came of it; its script continues it.",
        "paceline stop resnet",
        "paceline stop resnet --timeout 300 --then-now",
        codes="0 it has stopped, or nobody was driving it; 1 it has not stopped yet; 2 it could not be asked",
    )
    parser.add_run_argument()
    parser.add_argument("--now", action="store_true", help="end it at once: what is after its last checkpoint is lost")
    parser.add_argument("--timeout", type=float, default=60.0, metavar="S", help="seconds to wait for its end (60)")
    parser.add_argument("--then-now", action="store_true", help="end it at once when that time is over")
    parser.add_json_option()
    return parser


def _stop_run(home: RunLocation, asked: argparse.Namespace) -> Answer:
    from paceline._control.requests import StopRequest
    from paceline._control.requests import send_request as answered

    def print_progress(answer: Answer) -> None:
        if not asked.json:
            print(cli_output.escape_text(answer.text), file=sys.stderr)

    answer = answered(home, StopRequest(asked.now), asked.timeout, heard=print_progress)
    if answer.state == "taken" and not asked.now:
        if asked.then_now or _confirm_stop_now(home, asked):
            return answered(home, StopRequest(now=True), heard=print_progress)
        text = f"{home.name} has not come to a report within {asked.timeout:g} s; it stops when it does"
        return _replace_text(answer, f"{text}\n\nhint: `paceline stop {asked.run} --now` does not wait for that")
    return answer


def _confirm_stop_now(home: RunLocation, asked: argparse.Namespace) -> bool:
    if asked.json or not (sys.stdin.isatty() and sys.stderr.isatty()):
        return False
    print(f"{cli_output.escape_line(home.name)} has not come to a report within {asked.timeout:g} s.", file=sys.stderr)
    print("End it now? What is after its last checkpoint is lost. [y/N] ", end="", file=sys.stderr, flush=True)
    return sys.stdin.readline().strip().lower() in ("y", "yes")


def _replace_text(answer: Answer, text: str) -> Answer:
    import msgspec

    return msgspec.structs.replace(answer, text=text)
