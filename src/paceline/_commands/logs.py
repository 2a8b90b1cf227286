"""`paceline logs RUN`: what its workers printed, of the last attempt or of one, of all ranks or of one; `-f` follows.

To follow goes across attempts, until the run ends. Nothing is changed by it, and nothing waits for it.
"""

from __future__ import annotations

import argparse
import gc
import time
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from paceline._commands import asking, telling

if TYPE_CHECKING:
    from paceline._storage.home import Home
    from paceline._view.model import LogFile

FINE, NOTHING = 0, 1
POLL_S = 0.3
FOLLOWED_LINES = 10
_AT_ONCE = 50_000


def main(arguments: Sequence[str]) -> int:
    asked = _parser().parse_args(arguments)
    home = asking.home_of(asked.run)
    return _followed(home, asked) if asked.follow else _printed(home, asked)


def _parser() -> asking.Parser:
    parser = asking.Parser(
        "logs",
        "Prints what the workers of a run printed: of its last attempt, rank by rank, unless something else is said.",
        "paceline logs resnet --rank 0 -n 50",
        "paceline logs resnet -f --grep loss",
        codes="0 fine, 1 nothing was printed, 2 bad usage or not found, 130 Ctrl-C",
    )
    parser.add_run()
    parser.add_argument("--rank", type=asking.whole, metavar="N", help="of this rank only")
    parser.add_argument("--attempt", type=asking.whole, metavar="N", help="of this attempt (the last); 0: validations")
    parser.add_argument("-f", "--follow", action="store_true", help="go on with what is printed, until the run ends")
    parser.add_argument("--grep", metavar="TEXT", help="only lines with this text in them")
    parser.add_argument("-n", "--lines", type=asking.whole, metavar="LINES", help="the last so many of each rank")
    parser.add_json()
    return parser


def _printed(home: Home, asked: argparse.Namespace) -> int:
    chosen = _chosen(home, asked)
    if not chosen:
        raise asking.NoRunError(_no_log(home, asked))
    many = len(chosen) > 1
    found: list[dict[str, object]] = []
    num_lines = 0
    for file in chosen:
        lines = _lines(home, file, asked)
        if asked.json:
            found.append({"attempt": file.attempt, "rank": file.rank, "path": file.path, "lines": list(lines)})
            continue
        for text in lines:
            num_lines += 1
            print(_told(file, text, many))
    if asked.json:
        return telling.json({"logs": found})
    return FINE if num_lines else NOTHING


def _lines(home: Home, file: LogFile, asked: argparse.Namespace) -> Iterator[str]:
    wanted = (text for _, text in _from(home, file, 0, all_of_it=True) if asked.grep is None or asked.grep in text)
    return iter(deque(wanted, maxlen=asked.lines)) if asked.lines is not None else wanted


def _from(home: Home, file: LogFile, offset: int, *, all_of_it: bool) -> Iterator[tuple[int, str]]:
    """The lines of a log from an offset on, as they are now, each with the offset after it.

    `all_of_it`: also a last one that has no end, and perhaps is still being written.
    """
    from paceline._view import logs

    while True:
        page = logs.page(home, file.attempt, file.rank, after=offset, limit=_AT_ONCE)
        ends = [line.offset for line in page.lines[1:]] + [page.after]
        if page.lines:
            yield from ((end, line.text) for end, line in zip(ends, page.lines, strict=True))
        if page.after <= offset or page.after >= page.num_bytes:
            break
        offset = page.after
    if all_of_it and page.after < page.num_bytes:
        last = logs.page(home, file.attempt, file.rank, limit=1)
        if last.lines and last.lines[0].offset >= page.after:
            yield last.num_bytes, last.lines[0].text


def _chosen(home: Home, asked: argparse.Namespace, since: int | None = None) -> list[LogFile]:
    """The logs that are asked for: of one attempt, or of all attempts since one."""
    from paceline._view import logs

    files = [file for file in logs.files(home) if asked.rank in (None, file.rank)]
    if asked.attempt is not None:
        return [file for file in files if file.attempt == asked.attempt]
    first = since if since is not None else max((file.attempt for file in files), default=0)
    return [file for file in files if file.attempt >= first]


def _followed(home: Home, asked: argparse.Namespace) -> int:
    if asked.json:
        raise ValueError("--json is one document, and -f has no end to wait for: give one of them")
    from paceline._view.model import ENDED
    from paceline._view.reading import RunReader

    gc.enable()  # It may go on for days.
    reader = RunReader(home)
    places: dict[tuple[int, int], int] = {}
    """By attempt and rank: up to where it was read."""
    since: int | None = None
    most: int | None = asked.lines if asked.lines is not None else FOLLOWED_LINES
    while True:
        reader.refresh()
        over = reader.summary().state in ENDED
        # Looked for after the state: what was printed before the end is printed here, too.
        files = _chosen(home, asked, since)
        for file in files:
            ended = over or 0 < file.attempt < max(other.attempt for other in files)
            for text in _new_lines(home, file, places, asked.grep, most, ended):
                print(_told(file, text, len(files) > 1), flush=True)
        if over:
            return FINE
        if files:
            since, most = min(file.attempt for file in files), None
        time.sleep(POLL_S)


def _new_lines(
    home: Home, file: LogFile, places: dict[tuple[int, int], int], grep: str | None, most: int | None, ended: bool
) -> Iterable[str]:
    """What a log has more than when it was last looked at; at most the last so many."""
    found: deque[str] = deque(maxlen=most)
    for end, text in _from(home, file, places.get((file.attempt, file.rank), 0), all_of_it=ended):
        places[file.attempt, file.rank] = end
        if grep is None or grep in text:
            found.append(text)
    return found


def _told(file: LogFile, text: str, many: bool) -> str:
    # Of a progress bar that drew over itself, what was to be seen last.
    shown = telling.clean(text.rstrip("\r\n").rpartition("\r")[2])
    return f"rank {file.rank} | {shown}" if many else shown


def _no_log(home: Home, asked: argparse.Namespace) -> str:
    from paceline._view import logs

    there = ", ".join(file.name for file in logs.files(home)) or "no logs"
    asked_for = {"attempt": asked.attempt, "rank": asked.rank}
    of = ", ".join(f"{name} {number}" for name, number in asked_for.items() if number is not None)
    return f"run {home.name} has no log{f' of {of}' if of else ''}\n\nhint: it has {there}"
