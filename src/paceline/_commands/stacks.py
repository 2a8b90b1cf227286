"""`paceline stacks RUN`: where every thread of every rank of a run stands now."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from paceline._commands import asking, telling

if TYPE_CHECKING:
    from paceline._control.requests import Answer, RankStacks

FINE, NOT_ANSWERED, NOT_ASKED = 0, 1, 2


def main(arguments: Sequence[str]) -> int:
    asked = _parser().parse_args(arguments)
    home = asking.home_of(asked.run)
    from paceline._control.requests import Stacks
    from paceline._control.requests import asked as answered

    answer = answered(home, Stacks(tuple(asked.rank)), asked.timeout)
    if asked.json:
        telling.json(answer)
    elif answer.ok:
        print("\n".join(_shown(answer)))
    else:
        telling.complain(answer.text)
    if answer.ok:
        return FINE if all(stacks.answers for stacks in answer.stacks) else NOT_ANSWERED
    return NOT_ASKED


def _parser() -> asking.Parser:
    parser = asking.Parser(
        "stacks",
        "Shows what every rank of a run does now: the stacks of its threads, innermost call last, with the user's own\n"
        "lines marked. A rank that does not answer is shown with what the system knows of its process. They are also\n"
        "added to logs/attempt_N/stacks.txt of the run.",
        "paceline stacks resnet --rank 3",
        codes="0 all ranks answered, 1 some did not, 2 the run could not be asked",
    )
    parser.add_run()
    parser.add_argument(
        "--rank", type=asking.whole, action="append", default=[], metavar="N", help="only this one; may be given again"
    )
    parser.add_argument("--timeout", type=float, metavar="S", help="seconds to wait for the answer (15)")
    parser.add_json()
    return parser


def _shown(answer: Answer) -> Iterator[str]:
    for at, stacks in enumerate(answer.stacks):
        if at:
            yield ""
        yield from _rank(stacks)
    for problem in answer.problems:
        yield telling.line(f"note: {problem}")


def _rank(stacks: RankStacks) -> Iterator[str]:
    if not stacks.answers:
        yield telling.line(f"rank {stacks.rank} does not answer: {stacks.condition}")
        return
    yield telling.line(f"rank {stacks.rank}" + (f" ({stacks.condition})" if stacks.condition else ""))
    for thread in stacks.threads:
        yield telling.line(f"  {thread.name}")
        for each in thread.lines:
            yield telling.line(f"    {'>' if each.own else ' '} {each.where} in {each.function}")
        if thread.calls:
            yield telling.line(f"        calling {thread.calls}")
