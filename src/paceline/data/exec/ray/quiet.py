"""Ray Data's own lines are kept back for as long as anything of ours runs on it."""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Iterator

_NAMES = ("ray", "ray.data")
_lock = threading.Lock()
_levels: list[int] = []
_num_quiet = 0


@contextlib.contextmanager
def quietly() -> Iterator[None]:
    """Below errors; for streams that overlap, until the last one has ended."""
    global _num_quiet
    import ray.data  # noqa: F401  it sets the levels when it is imported

    loggers = [logging.getLogger(name) for name in _NAMES]
    with _lock:
        if not _num_quiet:
            _levels[:] = [logger.level for logger in loggers]
            for logger in loggers:
                logger.setLevel(logging.ERROR)
        _num_quiet += 1
    try:
        yield
    finally:
        with _lock:
            _num_quiet -= 1
            if not _num_quiet:
                for logger, level in zip(loggers, _levels, strict=True):
                    logger.setLevel(level)
