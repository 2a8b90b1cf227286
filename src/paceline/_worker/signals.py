"""Handles SIGTERM and SIGUSR1 in a worker: this machine is about to be taken away.

The system writes the signal's number to the link's own pipe, so the listening thread gets it while the main thread is
busy in C code. A handler that the user sets in the train function replaces ours.
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Iterator
from functools import partial
from types import FrameType

from paceline._worker.link import DriverLink

PREEMPTION_SIGNALS = (signal.SIGTERM, signal.SIGUSR1)

_link: DriverLink | None = None


@contextlib.contextmanager
def forward_signals(link: DriverLink) -> Iterator[None]:
    """Forward signals to the link. Only in the main thread; elsewhere signal handlers cannot be set."""
    global _link
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    around, _link = _link, link
    fd_before = signal.set_wakeup_fd(link.wake_fd, warn_on_full_buffer=False)
    before = {signum: signal.signal(signum, _handle_signal) for signum in PREEMPTION_SIGNALS}
    try:
        yield
    finally:
        for signum, handler in before.items():
            if signal.getsignal(signum) is _handle_signal:
                signal.signal(signum, handler)
        signal.set_wakeup_fd(fd_before)
        _link = around


def _handle_signal(signum: int, frame: FrameType | None) -> None:
    # The system has notified the link already, unless an event loop of the user's took over the wakeup descriptor.
    if _link is not None:
        _link.wake(signum)


def _mask_signals(how: int) -> None:
    """A signal to a child that is not reset yet would count as one to this worker."""
    if _link is not None:
        signal.pthread_sigmask(how, PREEMPTION_SIGNALS)


def _reset_in_child() -> None:
    """A process that the user's code forks is not a worker: signals end it as usual."""
    global _link
    if _link is None:
        return
    _link = None
    signal.set_wakeup_fd(-1)
    for signum in PREEMPTION_SIGNALS:
        if signal.getsignal(signum) is _handle_signal:
            signal.signal(signum, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, PREEMPTION_SIGNALS)


os.register_at_fork(
    before=partial(_mask_signals, signal.SIG_BLOCK),
    after_in_parent=partial(_mask_signals, signal.SIG_UNBLOCK),
    after_in_child=_reset_in_child,
)
