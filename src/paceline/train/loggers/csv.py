"""Log metrics as comma-separated values: one row per report."""

from __future__ import annotations

import csv
import io
import json
import os
from pathlib import Path
from typing import Any, Self

from paceline.train.callbacks import LoggedReport, LoggedRun, LoggerCallback
from paceline.train.loggers.json import to_row
from paceline.train.loggers.report_file import ReportFile
from paceline.train.result import flatten_metrics


class CSVLoggerCallback(LoggerCallback):
    """Writes `progress.csv` to the run's directory, or to `logdir`: one row per report.

    Nested metrics become columns such as `eval/loss`; the report's number and time are logged as in
    `JsonLoggerCallback`. A metric that first appears later becomes the last column: the file is then rewritten with the
    longer header and replaced atomically. Reports without a metric have an empty cell; lists are written as JSON.
    """

    def __init__(self, logdir: str | os.PathLike[str] | None = None, filename: str = "progress.csv") -> None:
        self._logdir = logdir
        self._filename = filename
        self._columns: dict[str, None] = {}
        self._file: ReportFile | None = None

    def for_trial(self, search: str, run: str) -> Self:
        """Log to a folder of the trial's own below `logdir`."""
        copied = super().for_trial(search, run)
        copied._logdir = Path(self._logdir) / run if self._logdir is not None else None
        return copied

    def log_start(self, run: LoggedRun) -> None:
        self._columns = {}
        self._file = ReportFile(Path(self._logdir or run.directory) / self._filename)
        for report in run.past:
            self.log_report(report)
        self._file.publish()

    def log_report(self, report: LoggedReport) -> None:
        assert self._file is not None
        if self._file.is_replacement(report):
            self._file.discard_from(report)
        cells = {name: _to_cell(value) for name, value in flatten_metrics(to_row(report)).items()}
        new = [name for name in cells if name not in self._columns]
        if new:
            self._columns |= dict.fromkeys(new)
            empty = "," * len(new)
            longer = [f"{piece.decode().removesuffix(_END)}{empty}{_END}".encode() for piece in self._file.read()]
            self._file.rewrite(longer, _encode_row(self._columns))
        self._file.add(report, _encode_row(cells.get(name, "") for name in self._columns))

    def log_end(self, failed: bool) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None


_END = "\n"


def _to_cell(value: Any) -> Any:
    """Convert a value so that it can be read back: numbers as digits, values without a table form as JSON."""
    if value is None:
        return ""
    return json.dumps(value) if isinstance(value, list | dict) else value


def _encode_row(cells: Any) -> bytes:
    text = io.StringIO()
    csv.writer(text, lineterminator=_END).writerow(cells)
    return text.getvalue().encode()
