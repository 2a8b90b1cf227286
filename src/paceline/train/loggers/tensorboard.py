"""Metrics as TensorBoard's event files. Neither TensorBoard nor TensorFlow is needed to write them, only to look.

A file is a sequence of TFRecords, each a protocol buffer; those fields of it that scalars need:

    Event      wall_time: double = 1, step: int64 = 2, file_version: string = 3, summary: Summary = 5,
               session_log: SessionLog = 7
    Summary    repeated value: Value = 1, each with tag: string = 1 and simple_value: float = 2; or, for another
               dashboard than that of scalars, tensor = 8 and metadata = 9, of which plugin_data = 1 has the
               dashboard's plugin_name: string = 1 and its own content: bytes = 2
    SessionLog status = 1, where 1 is a start: what the file has of this step and later ones is void
"""

from __future__ import annotations

import math
import os
import struct
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

from paceline.data.tfrecord import framed
from paceline.train.callbacks import LoggedReport, LoggedRun, LoggerCallback
from paceline.train.loggers.pieces import Pieces
from paceline.train.result import flat

_OURS = ".paceline"
"""How the names of our files end: others may write to the same directory."""
_MOST_TEXT = 500
"""Characters of a value of the config."""


class TensorBoardLoggerCallback(LoggerCallback):
    """Writes an event file to the run's directory, or to `logdir`: every metric that is a number, at the step of its
    report, nested ones as `eval/loss`. `tensorboard --logdir` that directory, or the one above it.

    A driver that continues a run writes a new file with all of it and removes the old one. Where restarted workers make
    reports again, the file says so, and TensorBoard forgets those from before. The config is in the HPARAMS dashboard.
    """

    def __init__(self, logdir: str | os.PathLike[str] | None = None) -> None:
        self._logdir = logdir
        self._file: Pieces | None = None
        self._is_seen = False

    def for_trial(self, search: str, run: str) -> Self:
        """In a folder of its own below `logdir`."""
        copied = super().for_trial(search, run)
        copied._logdir = Path(self._logdir) / run if self._logdir is not None else None
        return copied

    def log_start(self, run: LoggedRun) -> None:
        directory = Path(self._logdir or run.directory)
        directory.mkdir(parents=True, exist_ok=True)
        old = sorted(directory.glob(f"events.out.tfevents.*{_OURS}"))
        now = time.time()
        # TensorBoard goes on from one file to the next in the order of their names.
        number = max([int(now), *(_number(path) + 1 for path in old)])
        head = _version(now) + _restart(now, 0) + _parameters(now, run.context.train_loop_config)
        self._file = Pieces(directory / f"events.out.tfevents.{number:010d}{_OURS}", head)
        self._is_seen = False
        for report in run.past:
            self.log_report(report)
        self._file.put_in_place()
        self._is_seen = True
        for path in old:
            path.unlink()

    def log_report(self, report: LoggedReport) -> None:
        assert self._file is not None
        piece = _scalars(report)
        if self._file.is_again(report):
            if self._is_seen:
                # Not cut back: whoever reads it may be further on.
                piece = _restart(report.time, report.number) + piece
            else:
                self._file.cut(report)
        self._file.add(report, piece)

    def log_end(self, failed: bool) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None


TBXLoggerCallback = TensorBoardLoggerCallback


def _number(path: Path) -> int:
    digits = path.name.split(".")[3]
    return int(digits) if digits.isdigit() else 0


def _version(at: float) -> bytes:
    return framed(_double(1, at) + _bytes(3, b"brain.Event:2"))


def _restart(at: float, step: int) -> bytes:
    return framed(_double(1, at) + _whole(2, step) + _bytes(7, _whole(1, 1)))


def _parameters(at: float, config: Any) -> bytes:
    """The config as the dashboard of hyperparameters takes it: a map from names to texts, numbers and bools."""
    if not isinstance(config, Mapping) or not config:
        return b""
    named = flat({str(name): value for name, value in config.items()})
    hparams = b"".join(
        _bytes(1, _bytes(1, name.encode("utf-8", "replace")) + _bytes(2, _parameter(value)))
        for name, value in named.items()
    )
    content = _bytes(3, hparams + _double(5, at))
    metadata = _bytes(1, _bytes(1, b"hparams") + _bytes(2, content))
    nothing = _whole(1, 1) + _bytes(2, _bytes(2, _whole(1, 1))) + _bytes(5, struct.pack("<f", 0))
    value = _bytes(1, b"_hparams_/session_start_info") + _bytes(8, nothing) + _bytes(9, metadata)
    return framed(_double(1, at) + _bytes(5, _bytes(1, value)))


def _parameter(value: object) -> bytes:
    if isinstance(value, bool):
        return _whole(4, int(value))
    if isinstance(value, int | float):
        try:
            return _double(2, float(value))
        except OverflowError:
            return _bytes(3, str(value).encode())
    return _bytes(3, str(value)[:_MOST_TEXT].encode("utf-8", "replace"))


def _scalars(report: LoggedReport) -> bytes:
    values = b"".join(
        _bytes(1, _bytes(1, name.encode("utf-8", "replace")) + _float(2, value))
        for name, value in flat(report.metrics).items()
        if isinstance(value, int | float)
    )
    return framed(_double(1, report.time) + _whole(2, report.number) + _bytes(5, values))


def _double(field: int, value: float) -> bytes:
    return bytes([field << 3 | 1]) + struct.pack("<d", value)


def _float(field: int, value: Any) -> bytes:
    try:
        packed = struct.pack("<f", value)
    except OverflowError:  # Of more than a float of this size holds.
        packed = struct.pack("<f", math.inf if value > 0 else -math.inf)
    return bytes([field << 3 | 5]) + packed


def _whole(field: int, value: int) -> bytes:
    return bytes([field << 3]) + _varint(value)


def _bytes(field: int, value: bytes) -> bytes:
    return bytes([field << 3 | 2]) + _varint(len(value)) + value


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    out.append(value)
    return bytes(out)
