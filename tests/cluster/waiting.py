"""Waiting for something that a cluster, or a process on it, does in its own time."""

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def wait_until(condition: Callable[[], T], timeout_s: float = 100.0) -> T:
    """What it answers, once that is true."""
    deadline = time.monotonic() + timeout_s
    while not (answer := condition()):
        assert time.monotonic() < deadline, "it never came to be"
        time.sleep(0.02)
    return answer
