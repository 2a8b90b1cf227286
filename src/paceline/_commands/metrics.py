"""`paceline metrics RUN [NAME...]`: print the last rows and a sparkline per metric, or export all rows as CSV, Parquet
or JSON."""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import sys
from collections import deque
from collections.abc import Iterable, Sequence
from itertools import islice
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from paceline._commands import cli_args, cli_output

if TYPE_CHECKING:
    from paceline._view.run_reader import RunReader

OWN = ("step", "time", "attempt")
LAST_ROWS = 10
CURVE = 24
AT_ONCE = 10_000
"""Rows per group of a Parquet file."""

Row = dict[str, Any]


def main(arguments: Sequence[str]) -> int:
    parser = cli_args.CommandParser(
        "metrics",
        "Shows the metrics of a run, one row per report. Of reports repeated after a restart, only the last counts. "
        "Nested metrics have names like eval/loss.",
        "paceline metrics resnet loss eval/loss",
        "paceline metrics resnet --csv - | head",
        "paceline metrics resnet --parquet resnet.parquet --every 10",
        json=None,
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help="of metrics (all); a pattern such as eval/*")
    act: argparse._MutuallyExclusiveGroup = parser.add_mutually_exclusive_group()
    act.add_argument("--csv", metavar="FILE", help="write all rows as CSV; - is standard output")
    act.add_argument("--parquet", metavar="FILE", help="write all rows as Parquet")
    act.add_argument("--json", action="store_true", help="print one JSON document")
    parser.add_argument("--every", type=cli_args.parse_positive_int, default=1, metavar="N", help="one row of N")
    args = parser.parse_args(arguments)
    from paceline._core.errors import StorageError

    location = cli_args.locate_run(args.run)
    reader = cli_args.open_reader(location)
    if reader.problem is not None:  # Partial rows would look complete.
        raise StorageError(reader.problem)
    exports = args.csv is not None or args.parquet is not None or args.json
    names = _select_names(reader, args.names, location.name, exports)
    rows = islice(reader.rows(names), 0, None, args.every)
    if args.json:  # JSON has no NaN or infinity.
        plain = [{name: _to_json_value(value) for name, value in row.items()} for row in rows]
        return cli_output.print_json({"names": names, "rows": plain})
    if args.csv is not None:
        _write_csv(rows, _column_names(names), args.csv)
    elif args.parquet == "-":
        raise ValueError("--parquet needs a file, not standard output")
    elif args.parquet is not None:
        write_parquet(rows, _column_names(names), Path(args.parquet).expanduser())
    else:
        _print_table(reader, rows, names, location.name)
    return 0


def _select_names(reader: RunReader, patterns: Sequence[str], run: str, exports: bool) -> list[str]:
    """Select the requested metrics, in the run's order. Raises if a pattern matches none."""
    from fnmatch import fnmatchcase

    if exports:
        in_reports = dict.fromkeys(name for row in reader.rows() for name in row if name not in OWN)
        bare = {f"reported/{name}": name for name in OWN}
        names = [bare.get(name, name) for name in in_reports]
    else:  # All numeric metrics, and the other metrics in the last report.
        names = list(dict.fromkeys((*reader.metric_names(), *reader.summary().metrics)))
    if not patterns:
        return names
    for pattern in patterns:
        if not any(fnmatchcase(name, pattern) for name in names):
            import difflib

            similar = difflib.get_close_matches(pattern, names, n=3) or names[:10]
            hint = f"\n\nhint: it has {', '.join(similar)}" if similar else ""
            raise cli_args.RunNotFoundError(f"run {run} has no metric {pattern!r}{hint}")
    return [name for name in names if any(fnmatchcase(name, pattern) for pattern in patterns)]


def _write_csv(rows: Iterable[Row], columns: Sequence[str], target: str) -> None:
    import csv

    # A file gets the text as reported; a terminal gets it escaped.
    is_terminal = target == "-" and sys.stdout.isatty()
    with contextlib.ExitStack() as stack:
        file: IO[str] = sys.stdout
        if target != "-":
            part = stack.enter_context(cli_output.replace_file(Path(target).expanduser()))
            file = stack.enter_context(part.open("w", newline="", encoding="utf-8"))
        writer = csv.DictWriter(file, columns, restval="", extrasaction="ignore", lineterminator="\n")
        writer.writeheader()
        for row in rows:
            writer.writerow({name: _to_csv_cell(value, is_terminal) for name, value in row.items()})


def _column_names(names: Sequence[str]) -> list[str]:
    from paceline._view.journal.report_table import row_label

    return [*OWN, *map(row_label, names)]


def _print_table(reader: RunReader, rows: Iterable[Row], names: Sequence[str], run: str) -> None:
    from paceline._view import formatting
    from paceline._view.journal.report_table import row_label

    last = deque(rows, maxlen=LAST_ROWS)
    if not last:
        print(f"{cli_output.escape_line(run)} has no reports")
        return
    curves = [["METRIC", "FIRST", "LAST", "MIN", "MAX", "CURVE"]]
    for points in reader.points([name for name in names if name in reader.metric_names()], at_most=CURVE):
        values = [value for value in points.y if value is not None]
        lows, highs = ([value for value in side if value is not None] for side in (points.low, points.high))
        if values:
            cells = (values[0], last[-1].get(row_label(points.name), values[-1]), min(lows), max(highs))
            curves.append([points.name, *map(formatting.value, cells), formatting.sparkline(points.y, CURVE)])
    if len(curves) > 1:
        print(cli_output.format_table(curves, right=(1, 2, 3, 4), within=cli_output.terminal_width()))
        print()
    columns = ["step", "time", *_column_names(names)[len(OWN) :]]
    cells_of = [[_format_cell(row.get(name), name) for name in columns] for row in last]
    print(cli_output.format_table([columns, *cells_of], right=range(len(columns)), within=cli_output.terminal_width()))


def _format_cell(value: Any, name: str) -> str:
    from paceline._view import formatting

    if value is None:
        return ""
    return formatting.when(value) if name == "time" else formatting.value(value, 20)


def _to_json_value(value: Any) -> Any:
    is_too_large = isinstance(value, int) and not -(1 << 63) <= value < 1 << 63
    return str(value) if is_too_large or (isinstance(value, float) and not math.isfinite(value)) else value


def _to_csv_cell(value: Any, is_terminal: bool) -> Any:
    if isinstance(value, list | dict):
        return json.dumps(value)
    return cli_output.escape_line(value) if is_terminal and isinstance(value, str) else value


def write_parquet(rows: Iterable[dict[str, Any]], columns: Sequence[str], path: Path) -> None:
    """Write rows to a Parquet file, atomically. A column is numeric if all its values are; otherwise it holds text."""
    import pyarrow
    import pyarrow.parquet

    every = list(rows)
    kinds = {name: _column_kind({type(row.get(name)) for row in every}) for name in columns}
    schema = pyarrow.schema([(name, pyarrow.type_for_alias(kind)) for name, kind in kinds.items()])
    values = {name: [_convert_value(kind, row.get(name)) for row in every] for name, kind in kinds.items()}
    with cli_output.replace_file(path) as part:
        pyarrow.parquet.write_table(pyarrow.table(values, schema), part, row_group_size=AT_ONCE)


def _column_kind(types: set[type]) -> str:
    """Return the name of the Arrow type for values of these types."""
    types = types - {type(None)}
    if types in ({bool}, {int}):
        return "bool" if bool in types else "int64"
    return "double" if types <= {int, float} else "string"


def _convert_value(kind: str, value: Any) -> Any:
    if value is None or kind in ("bool", "int64"):
        return value
    if kind == "double":
        return float(value)
    return value if isinstance(value, str) else json.dumps(value)
