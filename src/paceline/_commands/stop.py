"""`paceline stop RUN`: ask the driver of a run or a search to end it, at the next report or now."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from paceline._commands import asking, telling

if TYPE_CHECKING:
    from paceline._control.requests import Answer
    from paceline._storage.home import Home

STOPPED, NOT_YET, NOT_ASKED = 0, 1, 2


def main(arguments: Sequence[str]) -> int:
    asked = _parser().parse_args(arguments)
    home = asking.home_of(asked.run, or_search=True)
    answer = _stopped(home, asked)
    if asked.json:
        telling.json(answer)
    elif answer.state in ("done", "undriven"):
        print(telling.clean(answer.text))
    else:
        telling.complain(answer.text)
    if answer.state in ("done", "undriven", "gone"):
        return STOPPED
    return NOT_ASKED if answer.state == "refused" else NOT_YET


def _parser() -> asking.Parser:
    parser = asking.Parser(
        "stop",
        "Asks a run, a search or one of its trials to stop as Ctrl-C does: at its next report, with a checkpoint\n"
        "where the script makes one on stop. Waits for its end, and says what came of it; its script continues it.",
        "paceline stop resnet",
        "paceline stop resnet --timeout 300 --then-now",
        codes="0 it has stopped, or nobody was driving it; 1 it has not stopped yet; 2 it could not be asked",
    )
    parser.add_run()
    parser.add_argument("--now", action="store_true", help="end it at once: what is after its last checkpoint is lost")
    parser.add_argument("--timeout", type=float, default=60.0, metavar="S", help="seconds to wait for its end (60)")
    parser.add_argument("--then-now", action="store_true", help="end it at once when that time is over")
    parser.add_json()
    return parser


def _stopped(home: Home, asked: argparse.Namespace) -> Answer:
    from paceline._control.requests import Stop
    from paceline._control.requests import asked as answered

    def heard(answer: Answer) -> None:
        if not asked.json:
            print(telling.clean(answer.text), file=sys.stderr)

    answer = answered(home, Stop(asked.now), asked.timeout, heard=heard)
    if answer.state == "taken" and not asked.now:
        if asked.then_now or _wanted_now(home, asked):
            return answered(home, Stop(now=True), heard=heard)
        text = f"{home.name} has not come to a report within {asked.timeout:g} s; it stops when it does"
        return _reworded(answer, f"{text}\n\nhint: `paceline stop {asked.run} --now` does not wait for that")
    return answer


def _wanted_now(home: Home, asked: argparse.Namespace) -> bool:
    if asked.json or not (sys.stdin.isatty() and sys.stderr.isatty()):
        return False
    print(f"{telling.line(home.name)} has not come to a report within {asked.timeout:g} s.", file=sys.stderr)
    print("End it now? What is after its last checkpoint is lost. [y/N] ", end="", file=sys.stderr, flush=True)
    return sys.stdin.readline().strip().lower() in ("y", "yes")


def _reworded(answer: Answer, text: str) -> Answer:
    import msgspec

    return msgspec.structs.replace(answer, text=text)
