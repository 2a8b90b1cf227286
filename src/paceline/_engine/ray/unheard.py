"""What a worker reported and its actor did not get to tell before it was lost, from the worker's own file.

A report is a line there before it is sent. Where the run's directory is shared, the driver reads what is missing, and
tells it before the loss. Of a run in a store the file went with the node: there nothing can be read.
"""

from __future__ import annotations

import os
from pathlib import Path

from paceline._core.codec import valid_prefix
from paceline._engine.messages import Begin, CheckpointStaged, FromWorker, Reported, decode_from_worker
from paceline._storage.layout import Layout

_TAIL = 4 << 20
"""What is on its way between two machines is far less."""


def unheard(begin: Begin, num_heard: int) -> list[FromWorker]:
    """The reports of a rank after the last that was heard, and what it staged lately, which may have been heard."""
    if begin.store is not None:
        return []
    try:
        lines = _tail(Layout(Path(begin.run_path)).reports(begin.attempt, begin.rank))
    except OSError:
        return []  # It reported nothing, or the storage is in trouble, which whoever writes there will tell.
    told = [decode_from_worker(payload) for payload in valid_prefix(lines)]
    return [
        message
        for message in told
        if isinstance(message, CheckpointStaged) or (isinstance(message, Reported) and message.seq > num_heard)
    ]


def _tail(path: Path) -> bytes:
    with path.open("rb") as file:
        size = os.fstat(file.fileno()).st_size
        if size > _TAIL:
            file.seek(size - _TAIL)
            file.readline()
        return file.read()
