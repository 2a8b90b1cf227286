"""Reports that a worker made but its lost actor did not forward, read from the worker's own file.

A report is written there before it is sent. If the run's directory is shared, the driver reads the missing reports and
delivers them before the loss. For a run in a store the file was lost with the node, so nothing can be read.
"""

from __future__ import annotations

import os
from pathlib import Path

from paceline._core.codec import valid_prefix
from paceline._engine.messages import CheckpointStaged, FromWorker, Reported, WorkerInit, decode_from_worker
from paceline._storage.run_layout import RunLayout

_TAIL_BYTES = 4 << 20
"""Far more than what can be in flight between two machines."""


def read_unsent_reports(begin: WorkerInit, num_heard: int) -> list[FromWorker]:
    """Return a rank's reports after the last received one, and its recent `CheckpointStaged`, possibly repeated."""
    if begin.store is not None:
        return []
    try:
        lines = _read_tail(RunLayout(Path(begin.run_path)).reports(begin.attempt, begin.rank))
    except OSError:
        return []  # It reported nothing, or the storage fails, which whoever writes there will report.
    told = [decode_from_worker(payload) for payload in valid_prefix(lines)]
    return [
        message
        for message in told
        if isinstance(message, CheckpointStaged) or (isinstance(message, Reported) and message.seq > num_heard)
    ]


def _read_tail(path: Path) -> bytes:
    with path.open("rb") as file:
        size = os.fstat(file.fileno()).st_size
        if size > _TAIL_BYTES:
            file.seek(size - _TAIL_BYTES)
            file.readline()
        return file.read()
