"""Suppresses Ray Data's own log lines while our streams run on it."""

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
def silence_ray_data() -> Iterator[None]:
    """Show errors only; with overlapping streams, until the last one ends."""
    global _num_quiet
    import ray.data  # noqa: F401  importing it sets the levels

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
