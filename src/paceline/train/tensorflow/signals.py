"""Keep our signal handlers when TensorFlow starts its server.

The server installs a SIGTERM handler below Python's that neither ends the process nor notifies us, so preemption
notices would be lost.
"""

from __future__ import annotations

import contextlib
import functools
import signal
import threading
from collections.abc import Iterator
from typing import Any


@contextlib.contextmanager
def preserve_signal_handlers() -> Iterator[None]:
    """Restore the SIGTERM handler after a multi-worker strategy is created."""
    import tensorflow as tf

    strategy: Any = tf.distribute.MultiWorkerMirroredStrategy
    made = strategy.__init__

    @functools.wraps(made)
    def init_preserving_handlers(self: Any, *args: Any, **kwargs: Any) -> None:
        made(self, *args, **kwargs)
        handler = signal.getsignal(signal.SIGTERM)
        if handler is not None and threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, handler)

    strategy.__init__ = init_preserving_handlers
    try:
        yield
    finally:
        strategy.__init__ = made
