"""Log metrics as TensorBoard event files. Only viewing them needs TensorBoard; writing needs neither it nor TensorFlow.

A file is a sequence of TFRecords, each a protocol buffer; these are the fields that scalars need:

    Event      wall_time: double = 1, step: int64 = 2, file_version: string = 3, summary: Summary = 5,
               session_log: SessionLog = 7
    Summary    repeated value: Value = 1, each with tag: string = 1 and simple_value: float = 2; or, for another
               dashboard than that of scalars, tensor = 8 and metadata = 9, of which plugin_data = 1 has the
               dashboard's plugin_name: string = 1 and its own content: bytes = 2
    SessionLog status = 1, where 1 is a start: it invalidates the file's content for this step and later ones
"""

from __future__ import annotations

import math
import os
import struct
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from paceline._core.arguments import flatten_dict
from paceline.data.sources.tfrecords import frame_record
from paceline.train.callbacks import LoggedReport
from paceline.train.loggers.report_files import FileLoggerCallback, ReportFile
from paceline.train.loggers.trial_hooks import LoggedTrial

_OURS = ".paceline"
"""The suffix of our files: others may write to the same directory."""
_MAX_TEXT_LENGTH = 500
"""Limit for the text of a config value."""


class TensorBoardLoggerCallback(FileLoggerCallback):
    """Writes an event file to the run's directory, or to `logdir`: every numeric metric at the step of its report,
    nested ones as `eval/loss`. View it with `tensorboard --logdir` and that directory, or the one above it.

    A driver that resumes a run writes a new file with everything and removes the old one. When restarted workers repeat
    reports, the file says so, and TensorBoard drops the earlier ones. The config is in the HPARAMS dashboard.
    """

    VALID_HPARAMS: ClassVar[tuple[type, ...]] = (str, bool, int, float, list)
    """The values of a config that are shown as they are; others as text."""
    VALID_NP_HPARAMS: ClassVar[tuple[type, ...]] = (np.bool_, np.float32, np.float64, np.int32, np.int64)
    """Those of NumPy, shown as Python's."""

    def __init__(self, logdir: str | os.PathLike[str] | None = None) -> None:
        super().__init__(logdir)
        self._is_published = False

    def log_trial_start(self, trial: LoggedTrial) -> None:
        directory = Path(self._logdir or trial.local_path)
        directory.mkdir(parents=True, exist_ok=True)
        old = sorted(directory.glob(f"events.out.tfevents.*{_OURS}"))
        now = time.time()
        # TensorBoard reads the files in the order of their names.
        digits = [path.name.split(".")[3] for path in old]
        number = max([int(now), *(int(each) + 1 for each in digits if each.isdigit())])
        version = frame_record(_encode_double(1, now) + _encode_bytes(3, b"brain.Event:2"))
        head = version + _encode_restart(now, 0) + _encode_hparams(now, trial.config)
        path = directory / f"events.out.tfevents.{number:010d}{_OURS}"
        self._file = ReportFile(path, head, is_durable=self.is_durable)
        self._is_published = False
        for report in trial.run.past:
            self.log_report(report)
        self._file.publish()
        self._is_published = True
        for path in old:
            path.unlink()

    def log_trial_result(self, iteration: int, trial: LoggedTrial, result: dict[str, Any]) -> None:
        report = trial.report
        assert self._file is not None
        assert report is not None
        piece = _encode_scalars(report, result)
        if self._file.is_replacement(report):
            if self._is_published:
                # Do not truncate the file: a reader may already be past this point.
                piece = _encode_restart(report.time, report.number) + piece
            else:
                self._file.discard_from(report)
        self._file.add(report, piece)


TBXLoggerCallback = TensorBoardLoggerCallback


def _encode_restart(at: float, step: int) -> bytes:
    return frame_record(_encode_double(1, at) + _encode_int(2, step) + _encode_bytes(7, _encode_int(1, 1)))


def _encode_hparams(at: float, config: Any) -> bytes:
    """Encode the config for the HPARAMS dashboard: a map from names to texts, numbers and bools."""
    if not isinstance(config, Mapping) or not config:
        return b""
    hparams = b"".join(
        _encode_bytes(1, _encode_bytes(1, name.encode("utf-8", "replace")) + _encode_bytes(2, _encode_hparam(value)))
        for name, value in flatten_dict(config).items()
    )
    content = _encode_bytes(3, hparams + _encode_double(5, at))
    metadata = _encode_bytes(1, _encode_bytes(1, b"hparams") + _encode_bytes(2, content))
    shape = _encode_bytes(2, _encode_bytes(2, _encode_int(1, 1)))
    placeholder = _encode_bytes(8, _encode_int(1, 1) + shape + _encode_bytes(5, struct.pack("<f", 0)))
    value = _encode_bytes(1, b"_hparams_/session_start_info") + placeholder + _encode_bytes(9, metadata)
    return frame_record(_encode_double(1, at) + _encode_bytes(5, _encode_bytes(1, value)))


def _encode_hparam(value: object) -> bytes:
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, bool):
        return _encode_int(4, int(value))
    if isinstance(value, int | float):
        try:
            return _encode_double(2, float(value))
        except OverflowError:
            return _encode_bytes(3, str(value).encode())
    return _encode_bytes(3, str(value)[:_MAX_TEXT_LENGTH].encode("utf-8", "replace"))


def _encode_scalars(report: LoggedReport, metrics: dict[str, Any]) -> bytes:
    values = b"".join(
        _encode_bytes(1, _encode_bytes(1, name.encode("utf-8", "replace")) + _encode_float(2, value))
        for name, value in flatten_dict(metrics).items()
        if isinstance(value, int | float)
    )
    return frame_record(_encode_double(1, report.time) + _encode_int(2, report.number) + _encode_bytes(5, values))


def _encode_double(field: int, value: float) -> bytes:
    return bytes([field << 3 | 1]) + struct.pack("<d", value)


def _encode_float(field: int, value: Any) -> bytes:
    try:
        packed = struct.pack("<f", value)
    except OverflowError:  # Out of range for a 32-bit float.
        packed = struct.pack("<f", math.inf if value > 0 else -math.inf)
    return bytes([field << 3 | 5]) + packed


def _encode_int(field: int, value: int) -> bytes:
    return bytes([field << 3]) + _encode_varint(value)


def _encode_bytes(field: int, value: bytes) -> bytes:
    return bytes([field << 3 | 2]) + _encode_varint(len(value)) + value


def _encode_varint(value: int) -> bytes:
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    out.append(value)
    return bytes(out)
