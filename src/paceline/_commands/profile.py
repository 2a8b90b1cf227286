"""`paceline profile RUN`: look at what the workers of a live run do, for some seconds."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from paceline._commands import asking, telling

if TYPE_CHECKING:
    from paceline._control.requests import Answer
    from paceline._storage.home import Home

FINE, NO_PROFILE, NOT_ASKED = 0, 1, 2
_KINDS = {
    "flame": "flame graph of Python: open it in a browser",
    "trace": "torch's operations: open it in ui.perfetto.dev or chrome://tracing",
    "stacks-folded": "the same stacks as text, for other tools",
}


def main(arguments: Sequence[str]) -> int:
    parser = _parser()
    asked = parser.parse_args(arguments)
    from paceline._control.requests import MAX_SECONDS, Profile
    from paceline._control.requests import asked as answered

    if not 0.0 < asked.seconds <= MAX_SECONDS:
        parser.error(f"--seconds {asked.seconds:g}: a profile may last up to {MAX_SECONDS:g} s")
    home = asking.home_of(asked.run)

    def heard(answer: Answer) -> None:
        if not asked.json:
            print(telling.clean(answer.text), file=sys.stderr)

    answer = answered(home, Profile(asked.seconds, tuple(asked.rank)), heard=heard)
    if asked.json:
        telling.json(answer)
    elif answer.ok:
        _show(home, answer)
    else:
        telling.complain(answer.text)
    if answer.ok:
        return FINE
    return NOT_ASKED if answer.state in ("undriven", "refused") else NO_PROFILE


def _parser() -> asking.Parser:
    parser = asking.Parser(
        "profile",
        "Profiles the workers of a live run, with no change to their code: a flame graph of Python and, where they\n"
        "use torch, a trace of its operations and of the kernels of their GPUs. The files lie in profiles/ of the run.",
        "paceline profile resnet --seconds 10 --rank 0",
        codes="0 there is a profile, 1 none came, 2 the run could not be asked",
    )
    parser.add_run()
    parser.add_argument("--seconds", type=float, default=10.0, metavar="S", help="how long to look (10)")
    parser.add_argument(
        "--rank",
        type=asking.whole,
        action="append",
        default=[],
        metavar="N",
        help="only this one; may be given again (all, but no more than the first 8)",
    )
    parser.add_json()
    return parser


def _show(home: Home, answer: Answer) -> None:
    for made in answer.files:
        print(telling.line(f"{home.uri}/{made.path}"))
    for kind in dict.fromkeys(made.kind for made in answer.files):
        print(telling.line(f"  .{_suffix(answer, kind)}: {_KINDS.get(kind, kind)}"))
    for problem in answer.problems:
        telling.complain(problem)


def _suffix(answer: Answer, kind: str) -> str:
    path = next(made.path for made in answer.files if made.kind == kind)
    return path.rpartition("/")[2].partition(".")[2]
