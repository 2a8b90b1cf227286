"""SIGTERM and SIGUSR1 to a worker: this machine is about to be taken away.

The system writes the signal's number to the link's own pipe, so the listening thread hears of it while the main thread
is busy in C code. A handler of the user's own, set in the train function, takes the place of ours.
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Iterator
from types import FrameType

from paceline._worker.link import Link

NOTICES = (signal.SIGTERM, signal.SIGUSR1)

_link: Link | None = None


@contextlib.contextmanager
def noticing(link: Link) -> Iterator[None]:
    """Pass notices on to the link. In the main thread; elsewhere signals are not ours to take."""
    global _link
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    around, _link = _link, link
    fd_before = signal.set_wakeup_fd(link.wake_fd, warn_on_full_buffer=False)
    before = {signum: signal.signal(signum, _notice) for signum in NOTICES}
    try:
        yield
    finally:
        for signum, handler in before.items():
            if signal.getsignal(signum) is _notice:
                signal.signal(signum, handler)
        signal.set_wakeup_fd(fd_before)
        _link = around


def _notice(signum: int, frame: FrameType | None) -> None:
    # The system has told the link already, unless an event loop of the user's took the descriptor over.
    if _link is not None:
        _link.wake(signum)


def _hold_back() -> None:
    """A signal to a child that has not forgotten yet would be told as one to this worker."""
    if _link is not None:
        signal.pthread_sigmask(signal.SIG_BLOCK, NOTICES)


def _let_through() -> None:
    if _link is not None:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, NOTICES)


def _forget() -> None:
    """A process that the user's code forks is nobody's worker: it ends when it is told to."""
    global _link
    if _link is None:
        return
    _link = None
    signal.set_wakeup_fd(-1)
    for signum in NOTICES:
        if signal.getsignal(signum) is _notice:
            signal.signal(signum, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, NOTICES)


os.register_at_fork(before=_hold_back, after_in_parent=_let_through, after_in_child=_forget)
