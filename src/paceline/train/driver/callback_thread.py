"""Calls the callbacks of a run on a thread of their own: a slow one delays neither reports nor signals."""

from __future__ import annotations

import contextvars
import logging
import threading
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from paceline._control.events import Committed, Event
from paceline._control.run import Run
from paceline._core import settings
from paceline._core.checkpoint_records import CheckpointRecord
from paceline._core.frames import thread_site
from paceline.train.driver.failures import CallbackObservers, GuardedObserver

log = logging.getLogger("paceline")

MAX_QUEUED_EVENTS = 10_000
MAX_HELD_CHECKPOINTS = 2
"""How many checkpoints that callbacks have not seen yet are kept although retention no longer needs them."""
NOTICE_S = 30.0
"""How long a call may take before a message says where it stands."""


@dataclass
class _Call:
    observer: GuardedObserver
    started_at: float
    is_announced: bool = False


class CallbackThread:
    """An observer that passes events to callbacks, one after the other, in order.

    A callback that raises is dropped. One whose call takes longer than `timeout_s` is named and dropped; its thread is
    left behind, and a new one calls the others. If callbacks are too far behind, they miss events.
    """

    name = "the thread of the callbacks"

    def __init__(self, observers: Sequence[GuardedObserver], timeout_s: float) -> None:
        self._timeout_s = timeout_s
        self._context = contextvars.copy_context()
        self._changed = threading.Condition()  # protects all below
        self._observers: list[GuardedObserver] = list(observers)
        self._queue: deque[tuple[Event, Run] | bool] = deque()
        """Events, and at the end whether the run failed."""
        self._item: tuple[Event, Run] | bool | None = None
        self._not_called: deque[GuardedObserver] = deque()
        """The observers that have not received `_item` yet."""
        self._call: _Call | None = None
        self._unseen_checkpoints: deque[int] = deque()
        self._num_skipped = 0
        self._is_done = False
        self._fatal_error: BaseException | None = None
        """What a callback raised to end the run, such as `KeyboardInterrupt`."""
        self._thread = self._start_thread()

    def on_event(self, event: Event, run: Run) -> None:
        with self._changed:
            if len(self._queue) >= MAX_QUEUED_EVENTS:
                self._num_skipped += 1
                if self._num_skipped == 1:
                    log.warning("callbacks are %d events behind, and miss further ones", MAX_QUEUED_EVENTS)
                return
            self._queue.append((event, run))
            if isinstance(event, Committed):
                self._unseen_checkpoints.append(event.record.seq)
            self._changed.notify_all()

    def tick(self, run: Run, now: float) -> None:
        self._check_call()
        self._raise_fatal_error()

    def is_held(self, record: CheckpointRecord) -> bool:
        """Whether a callback will need this checkpoint soon."""
        with self._changed:
            return record.seq in list(self._unseen_checkpoints)[:MAX_HELD_CHECKPOINTS]

    def close(self, failed: bool) -> None:
        """Call this when the run, or this driver's part in it, has ended: waits for the callbacks."""
        with self._changed:
            self._queue.append(failed)
            self._changed.notify_all()
        while not self._is_done:
            self._check_call()
            with self._changed:
                self._changed.wait_for(lambda: self._is_done, timeout=0.1)
        self._raise_fatal_error()
        if self._num_skipped:
            log.warning("callbacks missed %d events, because they were too slow", self._num_skipped)

    def _raise_fatal_error(self) -> None:
        error, self._fatal_error = self._fatal_error, None
        if error is not None:
            raise error

    def _start_thread(self) -> threading.Thread:
        # Callbacks see the context variables of the caller of `fit()`, such as the current trace.
        run = self._context.copy().run
        thread = threading.Thread(target=run, args=(self._call_observers,), name="paceline-callbacks", daemon=True)
        self._thread = thread
        thread.start()
        return thread

    def _call_observers(self) -> None:
        while (observer := self._next_observer()) is not None:
            item = self._item
            try:
                if isinstance(item, bool):
                    observer.close(item)
                else:
                    assert item is not None
                    observer.on_event(*item)
            except (Exception, SystemExit):  # `sys.exit()` in a callback ends nothing else.
                if self._drop(observer):
                    log.exception("%s raised an exception and is dropped; training continues", observer.name)
            except BaseException as error:  # noqa: BLE001  raised again in the driver's thread
                self._drop(observer)
                self._fatal_error = error

    def _next_observer(self) -> GuardedObserver | None:
        with self._changed:
            if threading.current_thread() is not self._thread:
                return None  # Left behind in a call that has returned after all.
            self._call = None
            while not self._not_called:
                if isinstance(self._item, tuple) and isinstance(self._item[0], Committed):
                    self._unseen_checkpoints.popleft()
                if isinstance(self._item, bool):
                    self._is_done = True
                    self._changed.notify_all()
                    return None
                self._item = None
                self._changed.wait_for(lambda: self._queue)
                self._item = self._queue.popleft()
                self._not_called.extend(self._observers)
            observer = self._not_called.popleft()
            self._call = _Call(observer, time.monotonic())
            return observer

    def _drop(self, observer: GuardedObserver) -> bool:
        """Call an observer no more. False if that has been decided before."""
        with self._changed:
            if observer not in self._observers:
                return False
            self._observers.remove(observer)
            return True

    def _check_call(self) -> None:
        """Name a callback that takes long, and drop one that takes too long."""
        with self._changed:
            call, thread = self._call, self._thread
            if call is None:
                return
            taken_s = time.monotonic() - call.started_at
            if taken_s > self._timeout_s:
                self._drop(call.observer)
                self._call = None  # Or the next check, before the new thread runs, would drop it once more.
                self._start_thread()
                then = "it is dropped; the others are called without it"
            elif taken_s > NOTICE_S and not call.is_announced:
                call.is_announced = True
                then = f"training continues; it is dropped after {self._timeout_s:g} s (PACELINE_CALLBACK_TIMEOUT_S)"
            else:
                return
        where = f" at {site}" if (site := thread_site(thread)) else ""
        log.warning("%s has been running for %.0f s%s; %s", call.observer.name, taken_s, where, then)


def start_callback_threads(observers: CallbackObservers) -> tuple[list[GuardedObserver], list[CallbackThread]]:
    """Return the observers that the driver itself calls, and one thread for all others; none if there are none."""
    apart = [observer for observer in observers if not observer.is_synchronous]
    threads = [CallbackThread(apart, settings.load().callback_timeout_s)] if apart else []
    return [observer for observer in observers if observer.is_synchronous], threads
