"""The signals that tell a worker of its machine's end stay ours when TensorFlow starts its server.

With the server it sets a handler of its own for SIGTERM, below Python's, which neither ends the process nor tells us.
"""

from __future__ import annotations

import contextlib
import functools
import signal
import threading
from collections.abc import Iterator
from typing import Any


@contextlib.contextmanager
def signals_kept() -> Iterator[None]:
    """Whoever handled SIGTERM before a strategy over several workers was made does so afterwards."""
    import tensorflow as tf

    strategy: Any = tf.distribute.MultiWorkerMirroredStrategy
    made = strategy.__init__

    @functools.wraps(made)
    def made_with_signals_kept(self: Any, *args: Any, **kwargs: Any) -> None:
        made(self, *args, **kwargs)
        handler = signal.getsignal(signal.SIGTERM)
        if handler is not None and threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, handler)

    strategy.__init__ = made_with_signals_kept
    try:
        yield
    finally:
        strategy.__init__ = made
