"""`paceline metrics RUN [NAME...]`: what was reported, as a table of the last rows with a small curve of each metric,
or all of it as CSV, Parquet or JSON."""

from __future__ import annotations

import argparse
import contextlib
import math
import sys
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from paceline._commands import asking, telling

if TYPE_CHECKING:
    from paceline._view.reading import RunReader

FINE = 0
OWN = ("step", "time", "attempt")
LAST_ROWS = 10
CURVE = 24
AT_ONCE = 10_000
"""Rows of Parquet that are gathered before they are written."""

Row = dict[str, Any]


def main(arguments: Sequence[str]) -> int:
    asked = _parser().parse_args(arguments)
    from paceline._core.errors import StorageError
    from paceline._view.reading import RunReader

    home = asking.home_of(asked.run)
    reader = RunReader(home)
    reader.refresh()
    if reader.problem is not None:  # Fewer rows than there are would pass for all of them.
        raise StorageError(reader.problem)
    exports = asked.csv is not None or asked.parquet is not None or asked.json
    names = _names(reader, asked.names, home.name, exports)
    rows = islice(reader.rows(names), 0, None, asked.every)
    if asked.csv is not None:
        return _csv(rows, names, asked.csv)
    if asked.parquet is not None:
        return _parquet(rows, names, asked.parquet)
    if asked.json:
        return telling.json({"names": names, "rows": [_plain(row) for row in rows]})
    return _table(reader, rows, names, home.name)


def _parser() -> asking.Parser:
    parser = asking.Parser(
        "metrics",
        "Shows the metrics of a run. Each row is a report that counts: of reports that were made again after a "
        "restart, the last. Nested metrics have names like eval/loss.",
        "paceline metrics resnet loss eval/loss",
        "paceline metrics resnet --csv - | head",
        "paceline metrics resnet --parquet resnet.parquet --every 10",
    )
    parser.add_run()
    parser.add_argument("names", nargs="*", metavar="NAME", help="of metrics (all); a pattern such as eval/*")
    act: argparse._MutuallyExclusiveGroup = parser.add_mutually_exclusive_group()
    act.add_argument("--csv", metavar="FILE", help="write all rows as CSV; - is the standard output")
    act.add_argument("--parquet", metavar="FILE", help="write all rows as Parquet")
    act.add_argument("--json", action="store_true", help="print one JSON document")
    parser.add_argument("--every", type=asking.natural, default=1, metavar="N", help="one row of N")
    return parser


def _names(reader: RunReader, asked: Sequence[str], run: str, exports: bool) -> list[str]:
    """The metrics that are asked for, in the order of the run; a name that it has not is refused."""
    from fnmatch import fnmatchcase

    there = _all_names(reader) if exports else _names_to_show(reader)
    if not asked:
        return there
    for pattern in asked:
        if not any(fnmatchcase(name, pattern) for name in there):
            import difflib

            near = difflib.get_close_matches(pattern, there, n=3) or there[:10]
            hint = f"\n\nhint: it has {', '.join(near)}" if near else ""
            raise asking.NoRunError(f"run {run} has no metric {pattern!r}{hint}")
    return [name for name in there if any(fnmatchcase(name, pattern) for pattern in asked)]


def _all_names(reader: RunReader) -> list[str]:
    """Whatever any report has."""
    names = dict.fromkeys(name for row in reader.rows() for name in row if name not in OWN)
    return [name.removeprefix("reported/") if name.removeprefix("reported/") in OWN else name for name in names]


def _names_to_show(reader: RunReader) -> list[str]:
    """Those of numbers, and those of the last report that are none."""
    names = dict.fromkeys(reader.detail().metric_names)
    return list(names | dict.fromkeys(reader.summary().metrics))


def _csv(rows: Iterable[Row], names: Sequence[str], target: str) -> int:
    import csv

    # In a file, texts are what was reported; on a terminal they are only shown.
    shown = target == "-" and sys.stdout.isatty()
    with _opened(target) as file:
        writer = csv.DictWriter(file, _columns(names), restval="", extrasaction="ignore", lineterminator="\n")
        writer.writeheader()
        for row in rows:
            writer.writerow({name: _cell(value, shown) for name, value in row.items()})
    return FINE


@contextlib.contextmanager
def _opened(target: str) -> Iterator[IO[str]]:
    if target == "-":
        yield sys.stdout
        return
    path = Path(target).expanduser()
    part = path.with_name(f".{path.name}.part")
    with part.open("w", newline="", encoding="utf-8") as file:
        yield file
    part.rename(path)


def _parquet(rows: Iterable[Row], names: Sequence[str], target: str) -> int:
    from paceline._commands.parquet import written

    if target == "-":
        raise ValueError("--parquet - : Parquet is written to a file, not to the standard output")
    written(rows, _columns(names), Path(target).expanduser(), AT_ONCE)
    return FINE


def _columns(names: Sequence[str]) -> list[str]:
    return [*OWN, *(f"reported/{name}" if name in OWN else name for name in names)]


def _table(reader: RunReader, rows: Iterable[Row], names: Sequence[str], run: str) -> int:
    from paceline._view import words
    from paceline._view.sparks import sparkline

    last = deque(rows, maxlen=LAST_ROWS)
    if not last:
        print(f"{telling.line(run)} has made no reports")
        return FINE
    curves = [["METRIC", "FIRST", "LAST", "LEAST", "GREATEST", "CURVE"]]
    for points in reader.points([name for name in names if name in reader.detail().metric_names], at_most=CURVE):
        known = [value for value in points.y if value is not None]
        lows, highs = ([value for value in side if value is not None] for side in (points.low, points.high))
        if known:
            shown = (known[0], last[-1].get(points.name, known[-1]), min(lows), max(highs))
            curves.append([points.name, *map(words.value, shown), sparkline(points.y, CURVE)])
    if len(curves) > 1:
        print(telling.table(curves, right=(1, 2, 3, 4), within=telling.width()))
        print()
    columns = ["step", "time", *_columns(names)[len(OWN) :]]
    cells_of = [[_shown(row.get(name), name) for name in columns] for row in last]
    print(telling.table([columns, *cells_of], right=range(len(columns)), within=telling.width()))
    return FINE


def _shown(value: Any, name: str) -> str:
    from paceline._view import words

    if value is None:
        return ""
    return words.when(value) if name == "time" else words.value(value, 20)


def _plain(row: Row) -> Row:
    """JSON has no numbers that are none."""
    return {name: _finite(value) for name, value in row.items()}


def _finite(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, int) and not -(1 << 63) <= value < 1 << 63:
        return str(value)
    return value


def _cell(value: Any, shown: bool) -> Any:
    if isinstance(value, list | dict):
        import json

        return json.dumps(value)
    return telling.line(value) if shown and isinstance(value, str) else value
