"""Log metrics to files: JSON lines, comma-separated values, and the file that such loggers write.

The content of a `ReportFile` is always a prefix of what the journal says. A driver writes a new file from the journal,
beside an existing one, and then replaces that. So nothing of a lost driver is read, and a driver that was only paused
keeps writing to a file that nobody sees. After that, each piece is appended with one write. When reports are repeated,
the file is truncated to those before.
"""

from __future__ import annotations

import csv
import io
import json
import os
import time
from array import array
from bisect import bisect_left
from pathlib import Path
from typing import Any, Self

from paceline._core.arguments import flatten_dict
from paceline._core.plain_values import from_plain, to_plain
from paceline._storage.files import LocalFiles
from paceline.train.callbacks import LoggedReport, LoggerCallback
from paceline.train.loggers.trial_hooks import LoggedTrial, TrialHooksMixin


class ReportFile:
    def __init__(self, path: Path, head: bytes = b"", *, is_durable: bool = True) -> None:
        """`is_durable`: survive a power cut; otherwise the journal does, and nobody waits for the disk."""
        self.path = path
        self._is_durable = is_durable
        self._partial_path = path.with_name(f".{path.name}.part")
        path.parent.mkdir(parents=True, exist_ok=True)
        flags = os.O_RDWR | os.O_CREAT
        try:
            self._fd = os.open(path, flags | os.O_EXCL, 0o644)
            self._is_published = True  # There is none to replace.
        except FileExistsError:
            self._fd = os.open(self._partial_path, flags | os.O_TRUNC, 0o644)
            self._is_published = False
        self._size = 0
        self._attempt = 0
        # The number and the offset of each piece: sixteen bytes of memory per report.
        self._numbers = array("Q")
        self._offsets = array("Q")
        self._write(head)

    def is_replacement(self, report: LoggedReport) -> bool:
        """Whether this report replaces an existing one."""
        return report.attempt > self._attempt and bool(self._numbers) and report.number <= self._numbers[-1]

    def discard_from(self, report: LoggedReport) -> None:
        """Remove this report and all later ones."""
        at = bisect_left(self._numbers, report.number)
        if at < len(self._numbers):
            self._size = self._offsets[at]
            os.ftruncate(self._fd, self._size)
            del self._numbers[at:], self._offsets[at:]

    def add(self, report: LoggedReport, piece: bytes) -> None:
        self._attempt = max(self._attempt, report.attempt)
        self._numbers.append(report.number)
        self._offsets.append(self._size)
        self._write(piece)

    def publish(self) -> None:
        """Make the file visible under its name."""
        self._sync()
        if not self._is_published:
            self._partial_path.rename(self.path)
            self._is_published = True
        if self._is_durable:
            LocalFiles().sync_dir(self.path.parent)

    def rewrite(self, pieces: list[bytes], head: bytes) -> None:
        """Replace each piece with a new one, in a new file that replaces this one when it is complete."""
        assert len(pieces) == len(self._numbers)
        if not self._size:  # Nothing to replace.
            self._write(head)
            return
        old, part = self._fd, self._partial_path.with_name(f"{self._partial_path.name}.new")
        self._fd = os.open(part, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o644)
        try:
            self._size = 0
            self._write(head)
            for at, piece in enumerate(pieces):
                self._offsets[at] = self._size
                self._write(piece)
            if not self._is_published:
                part.rename(self._partial_path)
            elif _is_file_at(old, self.path):
                self._sync()
                part.rename(self.path)
            else:
                part.unlink()  # Another driver has replaced the file, so this one is about to exit.
        finally:
            os.close(old)

    def read(self) -> list[bytes]:
        """Return the pieces in the file."""
        ends = [*self._offsets[1:], self._size] if self._offsets else []
        return [os.pread(self._fd, end - begin, begin) for begin, end in zip(self._offsets, ends, strict=True)]

    def close(self) -> None:
        if self._fd >= 0:
            try:
                self._sync()
            finally:
                os.close(self._fd)
                self._fd = -1

    def _sync(self) -> None:
        if self._is_durable:
            os.fsync(self._fd)

    def _write(self, data: bytes) -> None:
        try:
            while data:
                written = os.pwrite(self._fd, data, self._size)
                self._size += written
                data = data[written:]
        except OSError:
            os.close(self._fd)
            self._fd = -1
            raise


def _is_file_at(fd: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(fd), path.stat())
    except FileNotFoundError:
        return False


class AddedMetrics:
    """Computes what Ray adds to each report of a trial, from the reports of its run alone."""

    def __init__(self, trial_id: str, config: Any) -> None:
        self._own = {"trial_id": trial_id, "done": False, "config": json.loads(_encode_config(config))}
        self._totals = array("d", [0.0])
        """By number of a report, from 0: how long the run had trained."""
        self._attempt = self._first = 0
        self._restored_at = self._last_at = 0.0

    def compute(self, report: LoggedReport) -> dict[str, Any]:
        if report.attempt != self._attempt:
            self._attempt, self._first = report.attempt, report.number - 1
            self._restored_at = self._last_at = report.worker.at if report.worker is not None else report.time
            del self._totals[report.number :]  # The reports from here on are repeated.
        took_s, self._last_at = max(0.0, report.time - self._last_at), report.time
        self._totals.append(self._totals[-1] + took_s)
        place: dict[str, Any] = {}
        if (worker := report.worker) is not None:
            place = {"pid": worker.pid, "hostname": worker.host, "node_ip": worker.address}
        return {
            "training_iteration": report.number,
            "time_total_s": self._totals[-1],
            "time_this_iter_s": took_s,
            "time_since_restore": max(0.0, report.time - self._restored_at),
            "iterations_since_restore": report.number - self._first,
            "timestamp": report.time,
            "date": time.strftime("%Y-%m-%d_%H-%M-%S", time.localtime(report.time)),
            **place,
            **self._own,
        }


class FileLoggerCallback(TrialHooksMixin, LoggerCallback):
    """Writes a `ReportFile` to the run's directory, or to `logdir`. Subclasses write reports in `log_trial_result`."""

    _filename: str
    is_durable = True

    def __init__(self, logdir: str | os.PathLike[str] | None = None) -> None:
        self._logdir = logdir
        self._file: ReportFile | None = None
        self._is_for_trial = False
        self._added_metrics: AddedMetrics | None = None

    def for_trial(self, search: str, run: str) -> Self:
        """Log to a folder of the trial's own below `logdir`."""
        copied = super().for_trial(search, run)
        copied._is_for_trial = True
        copied._logdir = Path(self._logdir) / run if self._logdir is not None else None
        return copied

    def log_trial_start(self, trial: LoggedTrial) -> None:
        path = Path(self._logdir or trial.local_path) / self._filename
        if self._is_for_trial:
            self._added_metrics = AddedMetrics(trial.trial_id, trial.config)
        self._file = ReportFile(path, is_durable=self.is_durable)
        for report in trial.run.past:
            self.log_report(report)
        self._file.publish()

    def log_trial_end(self, trial: LoggedTrial, failed: bool = False) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None

    def _make_result(self, report: LoggedReport) -> dict[str, Any]:
        added = self._added_metrics.compute(report) if self._added_metrics is not None else {}
        return {**added, **report.metrics}

    def _discard_replaced(self, report: LoggedReport) -> ReportFile:
        """Return the file, without the report that this one replaces and those after it."""
        assert self._file is not None
        if self._file.is_replacement(report):
            self._file.discard_from(report)
        return self._file


class JsonLoggerCallback(FileLoggerCallback):
    """Writes `result.json` to the run's directory, or to `logdir`: one line per report, with nested metrics as they
    are.

    Each line has the report's number as `training_iteration` and the time when rank 0 made it as `timestamp`, and in a
    search what Ray adds (`time_total_s`, `pid`, `config` and so on); a user's metrics of these names take precedence.
    Values that are not finite are written as `NaN` and `Infinity`, which Python can read. The configuration of a trial
    is in `params.json` too.
    """

    def __init__(self, logdir: str | os.PathLike[str] | None = None, filename: str = "result.json") -> None:
        super().__init__(logdir)
        self._filename = filename

    def log_trial_start(self, trial: LoggedTrial) -> None:
        super().log_trial_start(trial)
        if self._is_for_trial:
            self.update_config(trial, trial.config)

    def update_config(self, trial: LoggedTrial, config: Any) -> None:
        """Write the configuration of a trial to `params.json`."""
        path = Path(self._logdir or trial.local_path) / "params.json"
        part = path.with_name(".params.json.part")
        part.write_text(_encode_config(config))
        part.rename(path)

    def log_trial_result(self, iteration: int, trial: LoggedTrial, result: dict[str, Any]) -> None:
        assert trial.report is not None
        line = json.dumps(_to_row(trial.report, result), ensure_ascii=False)
        self._discard_replaced(trial.report).add(trial.report, f"{line}\n".encode())


class CSVLoggerCallback(FileLoggerCallback):
    """Writes `progress.csv` to the run's directory, or to `logdir`: one row per report.

    Nested metrics become columns such as `eval/loss`; other columns are as in `JsonLoggerCallback`, without `config`. A
    metric that first appears later becomes the last column: the file is then rewritten with the longer header and
    replaced atomically. Reports without a metric have an empty cell; lists, tuples and arrays are
    written as JSON.
    """

    def __init__(self, logdir: str | os.PathLike[str] | None = None, filename: str = "progress.csv") -> None:
        super().__init__(logdir)
        self._filename = filename
        self._columns: dict[str, None] = {}

    def log_trial_start(self, trial: LoggedTrial) -> None:
        self._columns = {}
        super().log_trial_start(trial)

    def log_trial_result(self, iteration: int, trial: LoggedTrial, result: dict[str, Any]) -> None:
        assert trial.report is not None
        file = self._discard_replaced(trial.report)
        if self._added_metrics is not None and "config" not in trial.report.metrics:
            result = {name: value for name, value in result.items() if name != "config"}
        cells = {name: _to_cell(value) for name, value in flatten_dict(_to_row(trial.report, result)).items()}
        new = [name for name in cells if name not in self._columns]
        if new:
            self._columns |= dict.fromkeys(new)
            empty = "," * len(new)
            longer = [f"{piece.decode().removesuffix(_END)}{empty}{_END}".encode() for piece in file.read()]
            file.rewrite(longer, _encode_row(self._columns))
        file.add(trial.report, _encode_row(cells.get(name, "") for name in self._columns))


_END = "\n"


def _to_row(report: LoggedReport, metrics: dict[str, Any]) -> dict[str, object]:
    return {"training_iteration": report.number, "timestamp": report.time, **from_plain(metrics, as_lists=True)}


def _to_cell(value: Any) -> Any:
    """Convert a value so that it can be read back: numbers as digits, values without a table form as JSON."""
    if value is None:
        return ""
    return json.dumps(value) if isinstance(value, list | dict) else value


def _to_json(value: Any) -> Any:
    """Convert a value that JSON does not have: arrays to lists, other objects to their description."""
    try:
        return to_plain(from_plain(value, as_lists=True))
    except (TypeError, ValueError):
        return repr(value)


def _encode_config(config: Any) -> str:
    return json.dumps(config, indent=2, ensure_ascii=False, default=_to_json)


def _encode_row(cells: Any) -> bytes:
    text = io.StringIO()
    csv.writer(text, lineterminator=_END).writerow(cells)
    return text.getvalue().encode()
