"""Log metrics as JSON lines: one object per report."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Self

from paceline.train.callbacks import LoggedReport, LoggedRun, LoggerCallback
from paceline.train.loggers.report_file import ReportFile


class JsonLoggerCallback(LoggerCallback):
    """Writes `result.json` to the run's directory, or to `logdir`: one line per report, with nested metrics as they
    are.

    Each line has the report's number as `training_iteration` and the time when rank 0 made it as `timestamp`; a user's
    metrics of these names take precedence. Values that are not finite are written as `NaN` and `Infinity`, which Python
    can read.
    """

    def __init__(self, logdir: str | os.PathLike[str] | None = None, filename: str = "result.json") -> None:
        self._logdir = logdir
        self._filename = filename
        self._file: ReportFile | None = None

    def for_trial(self, search: str, run: str) -> Self:
        """Log to a folder of the trial's own below `logdir`."""
        copied = super().for_trial(search, run)
        copied._logdir = Path(self._logdir) / run if self._logdir is not None else None
        return copied

    def log_start(self, run: LoggedRun) -> None:
        self._file = ReportFile(Path(self._logdir or run.directory) / self._filename)
        for report in run.past:
            self.log_report(report)
        self._file.publish()

    def log_report(self, report: LoggedReport) -> None:
        assert self._file is not None
        if self._file.is_replacement(report):
            self._file.discard_from(report)
        line = json.dumps(to_row(report), ensure_ascii=False)
        self._file.add(report, f"{line}\n".encode())

    def log_end(self, failed: bool) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None


def to_row(report: LoggedReport) -> dict[str, object]:
    return {"training_iteration": report.number, "timestamp": report.time, **report.metrics}
