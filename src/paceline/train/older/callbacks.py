"""The callbacks of one `run()`: they observe that call as `RunConfig(callbacks=...)` observes the whole run."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator
from typing import Any

from paceline._control.events import Event, RetentionSet
from paceline._control.run import Run
from paceline._storage.run_store import RunStore
from paceline.train.callbacks import Callback, TrainRunContext
from paceline.train.failures import CallbackObserver, LoggerObserver, TracingObserver, make_observers

log = logging.getLogger("paceline")


def check_callbacks(callbacks: Any) -> list[Callback]:
    given = list(callbacks or ())
    for callback in given:
        if not isinstance(callback, Callback):
            raise ValueError(
                f"callbacks holds {callback!r}, which is not a paceline.train.TrainingCallback, UserCallback "
                "or LoggerCallback"
            )
    return given


class RunCallbacks:
    """Calls the callbacks. One that raises is dropped, its traceback is logged, and training continues."""

    def __init__(self, callbacks: list[Callback], about: TrainRunContext, depot: RunStore) -> None:
        # They start in the middle of a run: its journal has the earlier reports.
        self._observers: list[CallbackObserver | LoggerObserver | TracingObserver] = make_observers(
            callbacks, about, depot, continues=True
        )

    @contextlib.contextmanager
    def observe_run(self, run: Run) -> Iterator[None]:
        # This event has no effect, but the observers start with the first event they receive.
        self.on_event(RetentionSet(run.attempt, run.retention), run)
        failed = True
        try:
            yield
            failed = False
        finally:
            for observer in self._observers:
                observer.close(failed)

    def on_event(self, event: Event, run: Run) -> None:
        for observer in list(self._observers):
            try:
                observer.on_event(event, run)
            except (Exception, SystemExit):
                self._observers.remove(observer)
                log.exception("%s raised and is dropped; training goes on", observer)
