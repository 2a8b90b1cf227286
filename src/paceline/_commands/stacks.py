"""`paceline stacks RUN`: print the current stack of every thread of every rank."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from paceline._commands import cli_args, cli_output

if TYPE_CHECKING:
    from paceline._control.requests import Answer, RankStacks

FINE, NOT_ANSWERED, NOT_ASKED = 0, 1, 2


def main(arguments: Sequence[str]) -> int:
    parser = cli_args.CommandParser(
        "stacks",
        "Shows what every rank of a run and every busy data process does now: the stacks of its threads, innermost\n"
        "call last, with the user's own lines marked. One that does not answer is shown with what the system knows of\n"
        "its process. They are also added to logs/attempt_N/stacks.txt of the run.",
        "paceline stacks resnet --rank 3",
        codes="0 all ranks answered, 1 some did not, 2 the run could not be reached",
    )
    parser.add_rank_option()
    parser.add_argument("--timeout", type=float, metavar="S", help="seconds to wait for the answer (15)")
    args = parser.parse_args(arguments)
    location = cli_args.locate_run(args.run)
    from paceline._control.requests import StacksRequest, send_request

    answer = send_request(location, StacksRequest(tuple(args.rank)), args.timeout)
    cli_output.print_answer(answer, _format_answer(answer) if answer.ok else None, as_json=args.json)
    if answer.ok:
        return FINE if all(stacks.answers for stacks in answer.stacks) else NOT_ANSWERED
    return NOT_ASKED


def _format_answer(answer: Answer) -> Iterator[str]:
    for at, stacks in enumerate(answer.stacks):
        if at:
            yield ""
        yield from _format_rank(stacks)
    for problem in answer.problems:
        yield cli_output.escape_line(f"note: {problem}")


def _format_rank(stacks: RankStacks) -> Iterator[str]:
    if not stacks.answers:
        yield cli_output.escape_line(f"{stacks.title} does not answer: {stacks.condition}")
        return
    yield cli_output.escape_line(stacks.title + (f" ({stacks.condition})" if stacks.condition else ""))
    for thread in stacks.threads:
        yield cli_output.escape_line(f"  {thread.name}")
        for each in thread.lines:
            yield cli_output.escape_line(f"    {'>' if each.own else ' '} {each.where} in {each.function}")
        if thread.calls:
            yield cli_output.escape_line(f"        calling {thread.calls}")
