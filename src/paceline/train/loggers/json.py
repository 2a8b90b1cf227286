"""Metrics as JSON lines: one object for each report."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Self

from paceline.train.callbacks import LoggedReport, LoggedRun, LoggerCallback
from paceline.train.loggers.pieces import Pieces


class JsonLoggerCallback(LoggerCallback):
    """Writes `result.json` to the run's directory, or to `logdir`: a line for each report, nested metrics as they are.

    Each line has the number of the report as `training_iteration` and when rank 0 made it as `timestamp`; metrics of
    these names come before ours. What is not finite is written as Python reads it: `NaN`, `Infinity`.
    """

    def __init__(self, logdir: str | os.PathLike[str] | None = None, filename: str = "result.json") -> None:
        self._logdir = logdir
        self._filename = filename
        self._file: Pieces | None = None

    def for_trial(self, search: str, run: str) -> Self:
        """In a folder of its own below `logdir`."""
        copied = super().for_trial(search, run)
        copied._logdir = Path(self._logdir) / run if self._logdir is not None else None
        return copied

    def log_start(self, run: LoggedRun) -> None:
        self._file = Pieces(Path(self._logdir or run.directory) / self._filename)
        for report in run.past:
            self.log_report(report)
        self._file.put_in_place()

    def log_report(self, report: LoggedReport) -> None:
        assert self._file is not None
        if self._file.is_again(report):
            self._file.cut(report)
        line = json.dumps(row(report), ensure_ascii=False)
        self._file.add(report, f"{line}\n".encode())

    def log_end(self, failed: bool) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None


def row(report: LoggedReport) -> dict[str, object]:
    return {"training_iteration": report.number, "timestamp": report.time, **report.metrics}
