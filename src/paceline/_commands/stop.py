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
    parser = cli_args.CommandParser(
        "stop",
        "Asks a run, a search or one of its trials to stop as Ctrl-C does: at its next report, with a checkpoint\n"
        "where the script makes one on stop. Waits until it ends and prints the outcome; its script continues it.",
        "paceline stop resnet",
        "paceline stop resnet --timeout 300 --then-now",
        codes="0 stopped, or it had no driver; 1 not stopped yet; 2 it could not be reached",
    )
    parser.add_argument("--now", action="store_true", help="end it at once: work after its last checkpoint is lost")
    parser.add_argument("--timeout", type=float, default=60.0, metavar="S", help="seconds to wait for its end (60)")
    parser.add_argument("--then-now", action="store_true", help="end it at once after the timeout")
    args = parser.parse_args(arguments)
    location = cli_args.locate_run(args.run, or_search=True)
    answer = _stop_run(location, args)
    lines = [cli_output.escape_text(answer.text)] if answer.state in ("done", "undriven") else None
    cli_output.print_answer(answer, lines, as_json=args.json)
    if answer.state in ("done", "undriven", "gone"):
        return STOPPED
    return NOT_ASKED if answer.state == "refused" else NOT_YET


def _stop_run(location: RunLocation, args: argparse.Namespace) -> Answer:
    from msgspec.structs import replace

    from paceline._control.requests import StopRequest, send_request

    on_accepted = None if args.json else cli_output.print_accepted
    answer = send_request(location, StopRequest(args.now), args.timeout, on_accepted=on_accepted)
    if answer.state == "taken" and not args.now:
        if args.then_now or _confirm_stop_now(location, args):
            return send_request(location, StopRequest(now=True), on_accepted=on_accepted)
        text = f"{location.name} has not reported within {args.timeout:g} s; it stops when it does"
        hint = f"`paceline stop {args.run} --now` does not wait for a report"
        return replace(answer, text=f"{text}\n\nhint: {hint}")
    return answer


def _confirm_stop_now(location: RunLocation, args: argparse.Namespace) -> bool:
    if args.json or sys.stdin is None or not (sys.stdin.isatty() and sys.stderr.isatty()):
        return False
    print(f"{cli_output.escape_line(location.name)} has not reported within {args.timeout:g} s.", file=sys.stderr)
    print("End it now? Work after its last checkpoint is lost. [y/N] ", end="", file=sys.stderr, flush=True)
    return sys.stdin.readline().strip().lower() in ("y", "yes")
