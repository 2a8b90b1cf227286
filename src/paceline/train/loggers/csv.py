"""Metrics as a table of comma-separated values: one row for each report."""

from __future__ import annotations

import csv
import io
import json
import os
from pathlib import Path
from typing import Any, Self

from paceline.train.callbacks import LoggedReport, LoggedRun, LoggerCallback
from paceline.train.loggers.json import row
from paceline.train.loggers.pieces import Pieces
from paceline.train.result import flat


class CSVLoggerCallback(LoggerCallback):
    """Writes `progress.csv` to the run's directory, or to `logdir`: a row for each report.

    Nested metrics are columns such as `eval/loss`; those of a report's number and time are as in `JsonLoggerCallback`.
    A metric that comes later becomes a column at the end: the file is then written anew with the longer header, and put
    in its place when it is whole. Cells of reports without it are empty; lists are written as JSON.
    """

    def __init__(self, logdir: str | os.PathLike[str] | None = None, filename: str = "progress.csv") -> None:
        self._logdir = logdir
        self._filename = filename
        self._columns: dict[str, None] = {}
        self._file: Pieces | None = None

    def for_trial(self, search: str, run: str) -> Self:
        """In a folder of its own below `logdir`."""
        copied = super().for_trial(search, run)
        copied._logdir = Path(self._logdir) / run if self._logdir is not None else None
        return copied

    def log_start(self, run: LoggedRun) -> None:
        self._columns = {}
        self._file = Pieces(Path(self._logdir or run.directory) / self._filename)
        for report in run.past:
            self.log_report(report)
        self._file.put_in_place()

    def log_report(self, report: LoggedReport) -> None:
        assert self._file is not None
        if self._file.is_again(report):
            self._file.cut(report)
        cells = {name: _cell(value) for name, value in flat(row(report)).items()}
        new = [name for name in cells if name not in self._columns]
        if new:
            self._columns |= dict.fromkeys(new)
            empty = "," * len(new)
            longer = [f"{piece.decode().removesuffix(_END)}{empty}{_END}".encode() for piece in self._file.read()]
            self._file.rewrite(longer, _line(self._columns))
        self._file.add(report, _line(cells.get(name, "") for name in self._columns))

    def log_end(self, failed: bool) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None


_END = "\n"


def _cell(value: Any) -> Any:
    """What is read back as it was: numbers by their digits, what has no form in a table as JSON."""
    if value is None:
        return ""
    return json.dumps(value) if isinstance(value, list | dict) else value


def _line(cells: Any) -> bytes:
    text = io.StringIO()
    csv.writer(text, lineterminator=_END).writerow(cells)
    return text.getvalue().encode()
