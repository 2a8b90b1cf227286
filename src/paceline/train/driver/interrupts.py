"""Stop requests to a run while it is driven: signals to this process, or whatever replaces them."""

from __future__ import annotations

import signal
import threading
from typing import Any, Protocol

from paceline._core import settings
from paceline._engine.ray import ray_private


def _is_default_handler(handler: object) -> bool:
    """Whether the script has not set a handler. `ray.init()` installs one that ends the process."""
    return handler is signal.SIG_DFL or ray_private.is_signal_handler(handler)


class Interruptible(Protocol):
    def request_stop(self, *, now: bool) -> None: ...
    def request_preemption(self, grace_s: float) -> None: ...


class SignalInterrupts:
    """Handles signals in the main thread while a run is driven.

    Ctrl-C once asks for a stop at the next report, twice for a stop now. SIGTERM and SIGUSR1 mean that the machine is
    about to be preempted, unless the script has its own handlers for them; a second SIGTERM means a stop now.
    """

    def __init__(self, controller: Interruptible, grace_s: float | None = None) -> None:
        """`grace_s`: how long the machine stays after a signal; None: what the settings say."""
        self._grace_s = grace_s if grace_s is not None else settings.load().preemption_grace_s
        self.count = 0
        self.has_ctrl_c = False
        self._num_notices = 0
        self._controller = controller
        self._previous_handlers: dict[int, Any] = {}

    def __enter__(self) -> None:
        if threading.current_thread() is threading.main_thread():
            self._previous_handlers[signal.SIGINT] = signal.signal(signal.SIGINT, self._handle_sigint)
            for signum in (signal.SIGTERM, signal.SIGUSR1):
                if _is_default_handler(signal.getsignal(signum)):
                    self._previous_handlers[signum] = signal.signal(signum, self._handle_preemption_signal)

    def __exit__(self, *_: object) -> None:
        for signum, handler in self._previous_handlers.items():
            signal.signal(signum, handler)

    def on_stop_request(self, *, now: bool) -> None:
        self.count = max(self.count, 2 if now else 1)
        self._controller.request_stop(now=now)

    def on_ctrl_c(self, *, now: bool) -> None:
        self.has_ctrl_c = True
        self.on_stop_request(now=now)

    def _handle_sigint(self, *_: object) -> None:
        self.on_ctrl_c(now=self.count > 0)

    def _handle_preemption_signal(self, signum: int, _: object) -> None:
        self._num_notices += signum == signal.SIGTERM
        if self._num_notices > 1:
            self._controller.request_stop(now=True)
        else:
            self._controller.request_preemption(self._grace_s)
