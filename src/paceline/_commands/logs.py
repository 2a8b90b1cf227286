"""`paceline logs RUN`: print the output of workers, by attempt and rank; `-f` follows it.

Following continues across attempts until the run ends. It is read-only and never blocks the run.
"""

from __future__ import annotations

import argparse
import gc
import time
from collections import deque
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from paceline._commands import cli_args, cli_output

if TYPE_CHECKING:
    from paceline._storage.run_location import RunLocation
    from paceline._view.model import LogFile

FINE, NOTHING = 0, 1
POLL_S = 0.3
FOLLOWED_LINES = 10
_AT_ONCE = 50_000


def main(arguments: Sequence[str]) -> int:
    parser = cli_args.CommandParser(
        "logs",
        "Prints the workers' output of a run: by default of its last attempt, rank by rank.",
        "paceline logs resnet --rank 0 -n 50",
        "paceline logs resnet -f --grep loss",
        codes="0 fine, 1 nothing was printed, 2 bad usage or not found, 130 Ctrl-C",
    )
    add, number = parser.add_argument, cli_args.parse_non_negative_int
    add("--rank", type=number, metavar="N", help="of this rank only")
    add("--attempt", type=number, metavar="N", help="of this attempt (default: the last); 0: of validations")
    add("-f", "--follow", action="store_true", help="follow the output until the run ends")
    add("--grep", metavar="TEXT", help="only lines that contain this text")
    add("-n", "--lines", type=number, metavar="LINES", help="the last N lines of each rank")
    args = parser.parse_args(arguments)
    location = cli_args.locate_run(args.run)
    return _follow_logs(location, args) if args.follow else _print_logs(location, args)


def _print_logs(location: RunLocation, args: argparse.Namespace) -> int:
    chosen = _select_files(location, args)
    if not chosen:
        raise cli_args.RunNotFoundError(_no_log_message(location, args))
    many = len(chosen) > 1
    documents: list[dict[str, object]] = []
    num_lines = 0
    for file in chosen:
        lines = _select_lines(location, file, args)
        if args.json:
            documents.append({"attempt": file.attempt, "rank": file.rank, "path": file.path, "lines": list(lines)})
            continue
        for text in lines:
            num_lines += 1
            print(_format_line(file, text, many))
    if args.json:
        return cli_output.print_json({"logs": documents})
    return FINE if num_lines else NOTHING


def _select_lines(location: RunLocation, file: LogFile, args: argparse.Namespace) -> Iterator[str]:
    lines = (text for _, text in _read_lines_from(location, file, 0, is_ended=True) if (args.grep or "") in text)
    return iter(deque(lines, maxlen=args.lines)) if args.lines is not None else lines


def _read_lines_from(location: RunLocation, file: LogFile, offset: int, *, is_ended: bool) -> Iterator[tuple[int, str]]:
    """Yield the lines of a log from an offset, each with the offset after it.

    If `is_ended`, includes a last line without a newline, which may still be incomplete.
    """
    from paceline._view import logs

    while True:
        page = logs.read_log_page(location, file.attempt, file.rank, after=offset, limit=_AT_ONCE)
        ends = [line.offset for line in page.lines[1:]] + [page.after]
        yield from ((end, line.text) for end, line in zip(ends, page.lines, strict=False))
        if page.after <= offset or page.after >= page.num_bytes:
            break
        offset = page.after
    if is_ended and page.after < page.num_bytes:
        last = logs.read_log_page(location, file.attempt, file.rank, limit=1)
        if last.lines and last.lines[0].offset >= page.after:
            yield last.num_bytes, last.lines[0].text


def _select_files(location: RunLocation, args: argparse.Namespace, since: int | None = None) -> list[LogFile]:
    """Select the requested logs: of one attempt, or of all attempts from `since` on."""
    from paceline._view import logs

    files = [file for file in logs.list_log_files(location) if args.rank in (None, file.rank)]
    if args.attempt is not None:
        return [file for file in files if file.attempt == args.attempt]
    first = since if since is not None else max((file.attempt for file in files), default=0)
    return [file for file in files if file.attempt >= first]


def _follow_logs(location: RunLocation, args: argparse.Namespace) -> int:
    if args.json:
        raise ValueError("--json and -f cannot be combined: JSON needs the end of the output")
    from paceline._view.model import ENDED
    from paceline._view.run_reader import RunReader

    gc.enable()  # Following may last for days.
    reader = RunReader(location)
    offsets: dict[tuple[int, int], int] = {}
    """(attempt, rank) -> offset read so far."""
    since: int | None = None
    most: int | None = args.lines if args.lines is not None else FOLLOWED_LINES
    while True:
        reader.refresh()
        over = reader.summary().state in ENDED
        # List files after reading the state, so that everything printed before the end is included.
        files = _select_files(location, args, since)
        for file in files:
            ended = over or 0 < file.attempt < max(other.attempt for other in files)
            lines: deque[str] = deque(maxlen=most)
            place = file.attempt, file.rank
            for end, text in _read_lines_from(location, file, offsets.get(place, 0), is_ended=ended):
                offsets[place] = end
                if (args.grep or "") in text:
                    lines.append(text)
            for text in lines:
                print(_format_line(file, text, len(files) > 1), flush=True)
        if over:
            return FINE
        if files:
            since, most = min(file.attempt for file in files), None
        time.sleep(POLL_S)


def _format_line(file: LogFile, text: str, many: bool) -> str:
    # A progress bar overwrites its line with carriage returns; keep what was visible last.
    line = cli_output.escape_text(text.rstrip("\r\n").rpartition("\r")[2])
    return f"rank {file.rank} | {line}" if many else line


def _no_log_message(location: RunLocation, args: argparse.Namespace) -> str:
    from paceline._view import logs

    existing = ", ".join(file.name for file in logs.list_log_files(location)) or "no logs"
    selection = {"attempt": args.attempt, "rank": args.rank}
    of = ", ".join(f"{name} {number}" for name, number in selection.items() if number is not None)
    return f"run {location.name} has no log{f' of {of}' if of else ''}\n\nhint: it has {existing}"
