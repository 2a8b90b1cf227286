"""Files of a worker on another machine that the driver needs: its log, and reports that its lost actor did not send.

The logs of a run in a store are in a spool directory on each machine: the actor forwards new output along with the
worker's messages, and the driver writes it to a file of its own. A report is written to the worker's own file before it
is sent: in a shared directory the driver reads the missing ones; for a run in a store they are lost with the node.
"""

from __future__ import annotations

import logging
import os
from pathlib import Path

from paceline._core import settings
from paceline._core.codec import valid_prefix
from paceline._core.system import make_private_dirs, open_private
from paceline._engine.messages import CheckpointStaged, FromWorker, Reported, WorkerInit, decode_from_worker
from paceline._storage.log_files import trim_log
from paceline._storage.run_layout import RunLayout

logger = logging.getLogger("paceline")

MAX_PIECE_BYTES = 256 << 10
MAX_BACKLOG_BYTES = 8 << 20
"""Output that is printed faster than it can be forwarded is dropped; a note in the log says so."""
_TAIL_BYTES = 4 << 20
"""Far more than the reports that can be in flight between two machines."""


class WorkerLogTail:
    """Reads the log of one worker incrementally."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._position = 0

    def read_next(self) -> bytes:
        """Return the next piece; empty if there is nothing new."""
        try:
            size = os.stat(self._path).st_size
        except FileNotFoundError:
            return b""
        if size <= self._position:
            self._position = size  # It may have been cut.
            return b""
        trim_log(self._path, settings.log_limit_bytes())
        note = b""
        if size - self._position > MAX_BACKLOG_BYTES:
            num_dropped = size - self._position - MAX_BACKLOG_BYTES // 2
            note = f"\n... {num_dropped} bytes of output dropped ...\n".encode()
            self._position += num_dropped
        with self._path.open("rb") as file:
            file.seek(self._position)
            data = file.read(MAX_PIECE_BYTES)
        self._position += len(data)
        return note + data


def append_to_log(path: Path, data: bytes) -> None:
    """Append a worker's output to the driver's copy of its log; a failure is only logged."""
    try:
        make_private_dirs(path.parent)
        with open(path, "ab", opener=open_private) as file:
            file.write(data)
    except OSError as error:
        logger.warning("cannot write output from another machine to %s: %s", path, error)


def read_unsent_reports(begin: WorkerInit, last_seq: int) -> list[FromWorker]:
    """Return a rank's reports after `last_seq`, and its recent `CheckpointStaged`, possibly repeated."""
    if begin.store is not None:
        return []
    try:
        lines = _read_tail(RunLayout(Path(begin.run_path)).reports(begin.attempt, begin.rank))
    except OSError:
        return []  # It reported nothing, or the storage fails, which whoever writes there will report.
    return [
        message
        for message in map(decode_from_worker, valid_prefix(lines))
        if isinstance(message, CheckpointStaged) or (isinstance(message, Reported) and message.seq > last_seq)
    ]


def _read_tail(path: Path) -> bytes:
    with path.open("rb") as file:
        size = os.fstat(file.fileno()).st_size
        if size > _TAIL_BYTES:
            file.seek(size - _TAIL_BYTES)
            file.readline()
        return file.read()
